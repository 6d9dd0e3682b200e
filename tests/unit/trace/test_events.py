from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.trace.recordings import MS, TrueClock, collective, recorded

from yoked.trace.clocks import align
from yoked.trace.events import events_of, window_of, write_events
from yoked.trace.recorded import Exchange, RankTrace, Span

HOSTILE = '</script>"\\\n\x00\ud800\u2028<b>'


def span(name: str, began_ms: float, ended_ms: float, track: str = "main") -> Span:
    return Span(track, name, int(began_ms * MS), int(ended_ms * MS), None, None)


def message(peer: int, began_ns: int, ended_ns: int) -> Span:
    told = Exchange("send", "0", 2, None, 8, (peer,), meets=False, done=True)
    return Span("collectives", "gradients", began_ns, ended_ns, told, None)


def ranks_of(*spans: tuple[Span, ...]) -> list[RankTrace]:
    """Ranks of hosts with one clock, that record from 0 to 100 ms."""
    plain = recorded([TrueClock()] * len(spans), count=0, hosts=["desk"] * len(spans))
    return [
        replace(trace, began_ns=0, ended_ns=100 * MS, spans=each)
        for trace, each in zip(plain, spans, strict=True)
    ]


def events(ranks: list[RankTrace], steps: int = 10) -> list[dict[str, Any]]:
    alignment = align(ranks)
    return events_of(ranks, alignment, window_of(ranks, alignment, steps))


def test_a_trace_is_a_process_for_each_rank_with_threads_that_nest(tmp_path: Path) -> None:
    one = (
        span("step 1", 0, 50, "steps"),
        span("forward", 1, 20),
        span("wait: layers", 2, 5),
        span("save", 3, 9, "thread saver"),
        collective(1, 10 * MS, 30 * MS, 2),
        collective(2, 20 * MS, 40 * MS, 2),
        message(1, 11 * MS, 12 * MS),
    )
    two = (collective(1, 15 * MS, 30 * MS, 2), collective(2, 12 * MS, 40 * MS, 2))
    ranks = ranks_of(one, two)

    write_events(tmp_path / "t.json.gz", events(ranks), {"run": "night"})

    content = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    shown = content["traceEvents"]
    assert {each["ph"] for each in shown} == {"M", "X"}
    names = {
        (each["pid"], each["args"]["name"]) for each in shown if each["name"] == "process_name"
    }
    assert names == {(0, "rank 0, desk"), (1, "rank 1, desk")}
    threads = [e["args"]["name"] for e in shown if e["name"] == "thread_name" and e["pid"] == 0]
    # Two collectives at a time need two rows.
    assert threads == ["steps", "main", "thread saver", "collectives", "collectives 2", "messages"]
    tids = [each["tid"] for each in shown if each["name"] == "thread_name"]
    assert len(set(tids)) == len(tids)
    (first,) = (e for e in shown if e["pid"] == 0 and e.get("args", {}).get("number") == 1)
    assert (first["ts"], first["dur"], first["cat"]) == (10_000.0, 20_000.0, "collective")
    assert first["args"] == {
        "op": "all_reduce",
        "bytes": 4000,
        "group": "0",
        "number": 1,
        "last to begin": "rank 1, 5.0 ms later",
    }
    (last,) = (e for e in shown if e["pid"] == 1 and e.get("args", {}).get("number") == 1)
    assert "last to begin" not in last["args"], "nobody was waited for by the last"


def test_as_many_steps_are_shown_as_were_asked_for() -> None:
    steps = tuple(span(f"step {n}", 10 * n, 10 * n + 10, "steps") for n in range(9))
    inside = tuple(span(f"forward {n}", 10 * n + 1, 10 * n + 5) for n in range(9))
    ranks = ranks_of((*steps, *inside))

    alignment = align(ranks)
    window = window_of(ranks, alignment, 3)
    names = [e["name"] for e in events_of(ranks, alignment, window) if e["ph"] == "X"]

    assert (window.steps, window.lasted_s) == (3, 0.03)
    assert names == [*(f"step {n}" for n in range(3)), *(f"forward {n}" for n in range(3))]


def test_what_began_before_the_steps_that_are_shown_is_shown_whole_and_nothing_before_zero() -> (
    None
):
    ranks = ranks_of((span("step 1", 50, 60, "steps"), span("long", 20, 55)))

    shown = [(each["name"], each["ts"]) for each in events(ranks) if each["ph"] == "X"]

    assert shown == [("step 1", 30_000.0), ("long", 0.0)]


def test_only_what_all_ranks_recorded_is_shown() -> None:
    early, late = ranks_of((span("a", 0, 10), span("b", 50, 60)), (span("c", 55, 70),))
    late = replace(late, began_ns=40 * MS, ended_ns=120 * MS)

    names = [each["name"] for each in events([early, late]) if each["ph"] == "X"]

    assert names == ["b", "c"]


def test_ranks_that_recorded_at_other_times_are_all_shown() -> None:
    early, late = ranks_of((span("a", 0, 10),), (span("c", 250, 260),))
    late = replace(late, began_ns=200 * MS, ended_ns=300 * MS)

    shown = [(each["name"], each["ts"]) for each in events([early, late]) if each["ph"] == "X"]

    assert shown == [("a", 0.0), ("c", 250_000.0)]


def test_names_of_all_kinds_are_text_and_stay_so(tmp_path: Path) -> None:
    ranks = ranks_of((span(HOSTILE, 0, 1),))
    ranks = [replace(ranks[0], host=HOSTILE)]

    write_events(tmp_path / "t.json.gz", events(ranks), {"run": HOSTILE})

    text = gzip.decompress((tmp_path / "t.json.gz").read_bytes())
    assert text.isascii()
    assert b"\n" not in text
    assert {HOSTILE} == {e["name"] for e in json.loads(text)["traceEvents"] if e["ph"] == "X"}


def test_waits_say_for_whom() -> None:
    waits = (
        replace(span("wait: all", 0, 1), peers=()),
        replace(span("wait: one", 2, 3), peers=(1, 2)),
    )

    said = [each["args"]["waits for"] for each in events(ranks_of(waits)) if each["ph"] == "X"]

    assert said == ["all ranks", "rank 1, rank 2"]

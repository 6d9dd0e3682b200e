"""A run is traced while it goes on, and its ranks lie on one clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.distributed.conftest import YOKED, until
from tests.schemas import conforms

from yoked.trace.clocks import align
from yoked.trace.recorded import RankTrace, read_trace

pytestmark = pytest.mark.distributed

PROGRAM = Path(__file__).parent / "programs" / "steps_for_ever.py"


def yoked(lab: Any, *words: str) -> Any:
    return lab.start(["-c", YOKED, *words]).end()


def said_by(job: Path) -> str:
    """What rank 0 has printed so far."""
    file = job / "logs" / "0.0.out"
    return file.read_text() if file.exists() else ""


def spans_of(trace: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [each for each in events if each["ph"] == "X"]


def tracks_of(trace: Path) -> dict[int, dict[int, str]]:
    """By rank: the names of its threads."""
    found: dict[int, dict[int, str]] = {}
    for each in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]:
        if each["name"] == "thread_name":
            found.setdefault(each["pid"], {})[each["tid"]] = each["args"]["name"]
    return found


def nested(spans: Iterable[dict[str, Any]]) -> bool:
    """Whether spans of one thread lie beside or within each other, as a page can draw them."""
    open_ends: list[float] = []
    for each in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        while open_ends and open_ends[-1] <= each["ts"] + 1e-3:
            open_ends.pop()
        if open_ends and each["ts"] + each["dur"] > open_ends[-1] + 1e-3:
            return False
        open_ends.append(each["ts"] + each["dur"])
    return True


def test_a_training_is_traced_while_it_goes_on_and_takes_its_steps_as_before(lab: Any) -> None:
    started = lab.train("night", *lab.flags(num_iterations=5000, save_every=-1), ranks=2)
    until(lambda: lab.lines("night") >= 3, started)

    traced = yoked(lab, "trace", "night", "--steps", "5", "--json")
    lines = lab.lines("night")
    until(lambda: lab.lines("night") >= lines + 3, started)
    yoked(lab, "stop", "night")
    over = yoked(lab, "trace", "night", "--steps", "5", "--json")
    started.end()

    told = conforms("trace", traced.json)
    trace = Path(told["file"])
    assert (trace, told["steps"], told["missing"]) == (lab.runs / "night" / "trace.json.gz", 5, [])
    spans = spans_of(trace)
    names = {(each["pid"], each["name"]) for each in spans}
    for rank in (0, 1):
        assert {"forward", "backward", "lm_head", "muon", "adamw", "data"} <= {
            name for pid, name in names if pid == rank
        }
        assert any(name.startswith("wait: ") for pid, name in names if pid == rank)
        assert (rank, "waiting for all ranks") in names
    assert set(tracks_of(trace)) == {0, 1}
    for rank, tracks in tracks_of(trace).items():
        for tid in tracks:
            assert nested(e for e in spans if (e["pid"], e["tid"]) == (rank, tid)), tracks[tid]
    assert told["clocks"]["held_out"] >= 5
    assert told["clocks"]["apart_median_s"] < 0.005
    # The last trace stays for as long as the job.
    assert over.json["steps"] == 5
    assert "this is what was recorded of it last" in over.stderr


@pytest.mark.slow
def test_a_program_of_ones_own_is_traced_twice_and_what_was_put_around_torch_goes(
    lab: Any,
) -> None:
    (lab.root / "steps.py").write_text(PROGRAM.read_text())
    begun = yoked(lab, "run", "--ranks", "2", "--run", "own", "--detach", "--", "steps.py")
    assert begun.status == 0, begun.stderr
    job = lab.root / "state" / "jobs" / "own"
    until(lambda: "step 20" in said_by(job))

    first = yoked(lab, "trace", "own", "--steps", "4", "--json")
    again = yoked(lab, "trace", "own", "--steps", "4", "--out", "again.json.gz", "--json")
    status = yoked(lab, "runs", "--json").json["runs"][0]["state"]
    said = said_by(job)
    packed = {rank: (job / "errors" / f"0.{rank}.trace").read_bytes() for rank in (0, 1)}
    yoked(lab, "stop", "own")

    assert status == "running", said
    assert "wrapped: False" in said.splitlines()[-1], "the program sees its own torch again"
    for ended, name in ((first, "own.trace.json.gz"), (again, "again.json.gz")):
        told = conforms("trace", ended.json)
        spans = spans_of(lab.root / name)
        reduces = [s for s in spans if s["pid"] == 0 and s["name"] == "all_reduce"]
        numbers = [s["args"]["number"] for s in reduces]
        # Of each step one of 4,000 bytes, seen once.
        assert told["steps"] == 4
        assert len([s for s in reduces if s["args"]["bytes"] == 4000]) in (4, 5)
        assert len(set(numbers)) == len(numbers)
        assert all(before < after for before, after in pairwise(numbers))
        names = {span["name"] for span in spans}
        assert {"backward", "optimizer: SGD", "barrier", "send", "recv", "data"} <= names
        assert told["clocks"]["apart_median_s"] < 0.005
    require_aligned(packed)


@pytest.mark.slow
def test_what_ddp_exchanges_is_in_a_trace_with_its_place_among_the_others(lab: Any) -> None:
    (lab.root / "steps.py").write_text(PROGRAM.read_text())
    begun = yoked(lab, "run", "--ranks", "2", "--run", "own", "--detach", "--", "steps.py", "ddp")
    assert begun.status == 0, begun.stderr
    job = lab.root / "state" / "jobs" / "own"
    until(lambda: "step 20" in said_by(job))

    told = yoked(lab, "trace", "own", "--steps", "4", "--json").json
    yoked(lab, "stop", "own")

    spans = [s for s in spans_of(lab.root / told["file"]) if "number" in s["args"]]
    for rank in (0, 1):
        own = sorted((s for s in spans if s["pid"] == rank), key=lambda s: s["args"]["number"])
        # A barrier, and the gradients, which C++ exchanges: in turns, without a gap.
        assert {(s["name"], s["args"]["bytes"]) for s in own} == {
            ("all_reduce", 4000),
            ("barrier", 0),
        }
        numbers = [s["args"]["number"] for s in own]
        assert numbers == list(range(numbers[0], numbers[0] + len(own)))
        assert all(one["name"] != other["name"] for one, other in pairwise(own))
    assert told["steps"] == 4
    assert told["clocks"]["apart_median_s"] < 0.005


def require_aligned(packed: dict[int, bytes]) -> None:
    """As if the second rank's host had a clock that is 3.7 s ahead and gains 80 us a second."""
    ranks = [read_trace(packed[0], 0, "desktop"), with_clock(packed[1], 3_700_000_000, 80e-6)]

    alignment = align(ranks)

    clock = alignment.clocks["laptop"]
    for at_ns in (ranks[1].began_ns, ranks[1].ended_ns):
        true_ns = 3_700_000_000 + 80e-6 * (at_ns - ranks[1].began_ns)
        assert abs(clock.ahead_ns(at_ns) - true_ns) < 5e6
    assert len(alignment.apart_s) >= 20
    assert median(alignment.apart_s) < 0.005


def with_clock(packed: bytes, ahead_ns: int, drift: float) -> RankTrace:
    """What rank 1 recorded, by another clock."""
    head, *rows = (json.loads(line) for line in gzip.decompress(packed).splitlines())
    began_ns = head["began_ns"]

    def moved(at_ns: int) -> int:
        return at_ns + ahead_ns + round(drift * (at_ns - began_ns))

    head |= {name: moved(head[name]) for name in ("began_ns", "ended_ns")}
    rows = [[track, name, moved(b), moved(e), detail] for track, name, b, e, detail in rows]
    lines = [json.dumps(each) for each in (head, *rows)]
    return read_trace(gzip.compress("\n".join(lines).encode()), 1, "laptop")


def test_of_a_run_that_was_never_traced_it_is_said_how(lab: Any) -> None:
    ended = lab.train("short", *lab.flags(num_iterations=2, eval_every=-1)).end()
    assert ended.status == 0, ended.stderr

    told = yoked(lab, "trace", "short", "--json")
    unknown = yoked(lab, "trace", "shrot", "--json")
    long = yoked(lab, "trace", "short", "--steps", "5000")

    assert told.status == 1
    assert told.json["error"]["what"].startswith("nothing was recorded of run short, which is fini")
    assert told.json["error"]["fix"] == ["yoked trace short    while it goes on"]
    assert (unknown.status, unknown.json["error"]["fix"]) == (2, ["did you mean short?"])
    assert (long.status, "--steps 5000: 1 to 1,000 is possible" in long.stderr) == (2, True)


@pytest.mark.slow
def test_of_a_run_whose_rank_is_stopped_that_is_said_and_its_earlier_trace_stays(lab: Any) -> None:
    flags = lab.flags(num_iterations=50_000, save_every=-1, on_fault="report")
    started = lab.train("night", *flags, ranks=2)
    until(lambda: lab.lines("night") >= 3, started)
    first = yoked(lab, "trace", "night", "--steps", "2", "--json")
    trace = lab.runs / "night" / "trace.json.gz"
    before = trace.read_bytes()
    stopped = started.ranks()[1]

    stopped.suspend()
    saved = yoked(lab, "save", "night", "--wait", "3", "--json")
    traced = yoked(lab, "trace", "night", "--wait", "3", "--json")
    stopped.resume()
    lines = lab.lines("night")
    until(lambda: lab.lines("night") >= lines + 3, started)
    yoked(lab, "stop", "night", "--now")
    started.end()

    assert (first.status, saved.status, traced.status) == (0, 1, 1)
    why = f"rank 1 on this machine: its process {stopped.pid} was stopped"
    assert f"within 3 s of being asked: {why}" in saved.json["error"]["what"]
    assert f"no step of run night ended within 3 s: {why}" in traced.json["error"]["what"]
    for ended in (saved, traced):
        assert ended.json["error"]["fix"][0] == "yoked diagnose night"
    assert trace.read_bytes() == before

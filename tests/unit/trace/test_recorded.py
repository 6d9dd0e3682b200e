from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yoked.ranks.spans import MOST_SPANS, Spans
from yoked.trace.recorded import read_trace

HEAD: dict[str, Any] = {
    "rank": 0,
    "pid": 7,
    "began_ns": 10,
    "ended_ns": 20,
    "epoch_ns": -5,
    "steps": 1,
    "lost": 0,
}
EXCHANGE: dict[str, Any] = {
    "op": "all_reduce",
    "group": "0",
    "size": 2,
    "number": 3,
    "bytes": 8,
    "peers": [],
    "meets": True,
    "done": True,
}


def packed(*lines: object) -> bytes:
    return gzip.compress("\n".join(json.dumps(each) for each in lines).encode())


def test_what_a_rank_writes_is_what_is_read(tmp_path: Path) -> None:
    spans = Spans()
    spans.step_done(1)
    with spans.span("nobody asked"):
        pass

    spans.ask(2, 60.0)
    spans.step_done(7)
    with spans.span("forward"), spans.span("wait: gradients", (1,)):
        pass
    now_ns = time.monotonic_ns()
    spans.add("collectives", "gradients", now_ns, now_ns, dict(EXCHANGE))
    spans.step_done(8)
    spans.write(tmp_path / "0.trace", rank=0)

    trace = read_trace((tmp_path / "0.trace").read_bytes(), 0, "desktop")
    assert (trace.rank, trace.host, trace.steps, trace.lost) == (0, "desktop", 1, 0)
    assert [(each.track, each.name) for each in trace.spans] == [
        ("main", "wait: gradients"),
        ("main", "forward"),
        ("collectives", "gradients"),
        ("steps", "step 8"),
    ]
    assert trace.spans[0].peers == (1,)
    assert trace.spans[2].exchange is not None
    assert trace.spans[2].exchange.number == 3
    # Nothing is recorded any more.
    spans.step_done(9)
    assert not spans.is_over


def test_recording_ends_after_enough_steps_and_enough_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_ns = ticking(monkeypatch)
    spans = Spans()
    spans.ask(2, 60.0)
    for number in range(1, 200):
        next(now_ns)
        spans.step_done(number)
        if spans.is_over:
            break
    spans.write(tmp_path / "0.trace", rank=0)

    trace = read_trace((tmp_path / "0.trace").read_bytes(), 0, "a")
    # Steps of 10 ms: until 2 s have gone by, so that all ranks have some in common.
    assert trace.steps == 199 - 1
    assert (trace.ended_ns - trace.began_ns) / 1e9 == pytest.approx(2.0, abs=0.05)


def test_recording_ends_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = ticking(monkeypatch)
    spans = Spans()
    spans.ask(2, 1.0)
    assert not spans.is_over
    for _ in range(101):
        next(now_ns)
    assert spans.is_over


def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that shows 10 ms more each time it is advanced."""
    shown = [0]

    def advance() -> Iterator[int]:
        while True:
            shown[0] += 10_000_000
            yield shown[0]

    monkeypatch.setattr("yoked.ranks.spans.time.monotonic_ns", lambda: shown[0])
    return advance()


def test_spans_for_which_there_is_no_room_are_counted(tmp_path: Path) -> None:
    spans = Spans()
    spans.ask(1, 60.0)
    for _ in range(MOST_SPANS + 5):
        spans.add("main", "x", 1, 2, None)
    spans.write(tmp_path / "0.trace", rank=0)

    trace = read_trace((tmp_path / "0.trace").read_bytes(), 0, "a")
    assert (len(trace.spans), trace.lost) == (MOST_SPANS, 5)


def test_what_another_thread_does_is_on_a_track_of_its_own(tmp_path: Path) -> None:
    spans = Spans()
    spans.ask(1, 60.0)

    def work() -> None:
        with spans.span("save"):
            pass

    thread = threading.Thread(target=work, name="saver")
    thread.start()
    thread.join()
    spans.write(tmp_path / "0.trace", rank=0)

    (span,) = read_trace((tmp_path / "0.trace").read_bytes(), 0, "a").spans
    assert (span.track, span.name) == ("thread saver", "save")


def test_names_are_shown_without_what_acts_on_a_terminal() -> None:
    trace = read_trace(packed(HEAD, ["main", "\x1b[2Jgone\u202e", 1, 2, None]), 0, "a")

    assert trace.spans[0].name == "\\x1b[2Jgone\\u202e"


REFUSED = (
    b"",
    b"plain",
    packed(HEAD)[:-9],
    packed([]),
    packed({**HEAD, "rank": 1}),
    packed({**HEAD, "ended_ns": 9}),
    packed({**HEAD, "began_ns": 2**70}),
    packed({**HEAD, "steps": "1"}),
    packed(HEAD, {"name": "no list"}),
    packed(HEAD, ["main", "forward", 2, 1, None]),
    packed(HEAD, ["main", "forward", 1, float("nan"), None]),
    packed(HEAD, ["main", "x" * 201, 1, 2, None]),
    packed(HEAD, ["main", 5, 1, 2, None]),
    packed(HEAD, ["collectives", "x", 1, 2, {**EXCHANGE, "bytes": -1}]),
    packed(HEAD, ["collectives", "x", 1, 2, {**EXCHANGE, "number": 1.5}]),
    packed(HEAD, ["collectives", "x", 1, 2, {**EXCHANGE, "peers": ["a"]}]),
    packed(HEAD, ["main", "x", 1, 2, {"peers": None}]),
    packed(HEAD, *[["main", "x", 1, 2, None]] * (MOST_SPANS + 1)),
    gzip.compress(b"[" * 100_000),
    gzip.compress(bytes(65 << 20)),
)


@pytest.mark.parametrize("content", REFUSED, ids=map(str, range(len(REFUSED))))
def test_what_no_rank_writes_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_trace(content, 0, "a")

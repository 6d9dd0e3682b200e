"""A trace as Perfetto and chrome://tracing open it: a process for each rank, on one clock.

Source: "Trace Event Format", the JSON object format: complete events (X) and metadata (M); times in
microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yoked.core.fs import write_bytes
from yoked.ranks.spans import COLLECTIVES, MAIN, STEPS
from yoked.trace.clocks import Alignment
from yoked.trace.recorded import Exchange, RankTrace, Span

# In the order in which a page shows them; the main thread stands between.
_MESSAGES = "messages"
# Less is the clocks' own error.
_LATE_MS = 0.5
# Threads of a process have numbers of their own.
_TRACKS = 1000


def write_events(path: Path, events: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write a trace as gzip of JSON. about: what stands beside the events."""
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    packed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), compresslevel=6)
    write_bytes(path, packed, mode=0o600, durable=False)


class Window(NamedTuple):
    """What is shown: from then until then by the common clock; whole steps of the first rank."""

    began_ns: float
    ended_ns: float
    steps: int

    @property
    def lasted_s(self) -> float:
        """In seconds."""
        return (self.ended_ns - self.began_ns) / 1e9


def window_of(ranks: Sequence[RankTrace], alignment: Alignment, steps: int) -> Window:
    """At most so many steps of the time of which all ranks recorded something.

    Without a whole step in it: all of that time; where there is none, all that was recorded.
    """
    began_ns = max(_common_ns(trace, alignment, trace.began_ns) for trace in ranks)
    ended_ns = min(_common_ns(trace, alignment, trace.ended_ns) for trace in ranks)
    if ended_ns <= began_ns:
        began_ns = min(_common_ns(trace, alignment, trace.began_ns) for trace in ranks)
        ended_ns = max(_common_ns(trace, alignment, trace.ended_ns) for trace in ranks)
    first = ranks[0]
    whole = [
        (_common_ns(first, alignment, span.began_ns), _common_ns(first, alignment, span.ended_ns))
        for span in first.spans
        if span.track == STEPS
    ]
    shown = [(begin, end) for begin, end in whole if begin >= began_ns and end <= ended_ns][:steps]
    if not shown:
        return Window(began_ns, ended_ns, 0)
    return Window(shown[0][0], shown[-1][1], len(shown))


def events_of(
    ranks: Sequence[RankTrace], alignment: Alignment, window: Window
) -> list[dict[str, Any]]:
    """The events of all ranks in a window; times are counted from the first one's begin."""
    began_ns, ended_ns, _ = window
    last = _last_to_begin(ranks, alignment)
    kept = {
        trace.rank: [
            span
            for span in trace.spans
            if _common_ns(trace, alignment, span.ended_ns) > began_ns
            and _common_ns(trace, alignment, span.began_ns) < ended_ns
        ]
        for trace in ranks
    }
    # Some began before the window does, and Perfetto drops what lies before 0.
    begins_ns = [
        _common_ns(trace, alignment, span.began_ns) for trace in ranks for span in kept[trace.rank]
    ]
    origin_ns = min(begins_ns, default=began_ns)
    return [
        event
        for trace in ranks
        for event in _rank_events(trace, kept[trace.rank], alignment, origin_ns, last)
    ]


def _rank_events(
    trace: RankTrace,
    spans: Iterable[Span],
    alignment: Alignment,
    origin_ns: float,
    last: Mapping[tuple[str, int], tuple[int, float]],
) -> Iterator[dict[str, Any]]:
    # Perfetto takes process 0 for the kernel's idle one.
    pid = trace.rank
    yield _about(pid, 0, "process_name", name=f"rank {trace.rank}, {trace.host}")
    yield _about(pid, 0, "process_labels", labels=trace.host)
    yield _about(pid, 0, "process_sort_index", sort_index=trace.rank)
    for number, (track, each) in enumerate(_tracks(spans)):
        tid = pid * _TRACKS + number
        yield _about(pid, tid, "thread_name", name=track)
        yield _about(pid, tid, "thread_sort_index", sort_index=number)
        for span in each:
            begin_ns = round(_common_ns(trace, alignment, span.began_ns) - origin_ns)
            end_ns = round(_common_ns(trace, alignment, span.ended_ns) - origin_ns)
            yield {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": begin_ns / 1e3,
                "dur": max(0, end_ns - begin_ns) / 1e3,
                "name": span.name,
                "cat": "collective" if span.exchange else track.split()[0],
                "args": _args(trace, alignment, span, last),
            }


def _args(
    trace: RankTrace,
    alignment: Alignment,
    span: Span,
    last: Mapping[tuple[str, int], tuple[int, float]],
) -> dict[str, Any]:
    if span.exchange is None:
        if span.peers is None:
            return {}
        return {"waits for": _ranks(span.peers) if span.peers else "all ranks"}
    told = span.exchange
    args: dict[str, Any] = {"op": told.op, "bytes": told.bytes, "group": told.group}
    if told.number is not None:
        args["number"] = told.number
    if told.peers:
        args["peer"] = _ranks(told.peers)
    if not told.done:
        args["end"] = "not known"
    if (found := last.get(_key(told))) is not None and found[0] != trace.rank:
        late_ms = (found[1] - _common_ns(trace, alignment, span.began_ns)) / 1e6
        if late_ms >= _LATE_MS:
            args["last to begin"] = f"rank {found[0]}, {late_ms:.1f} ms later"
    return args


def _tracks(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """Steps, the main thread, other threads, then as many rows of exchanges as overlap.

    A receive is posted long before its message comes: among collectives they would hide those.
    """
    threads: dict[str, list[Span]] = {}
    rows: dict[str, list[list[Span]]] = {COLLECTIVES: [], _MESSAGES: []}
    for span in sorted(spans, key=lambda span: (span.began_ns, -span.ended_ns)):
        if span.exchange is None:
            threads.setdefault(span.track, []).append(span)
            continue
        own = rows[_MESSAGES if span.exchange.peers else COLLECTIVES]
        free = next((row for row in own if row[-1].ended_ns <= span.began_ns), None)
        if free is None:
            own.append(free := [])
        free.append(span)
    order = {STEPS: 0, MAIN: 1}
    return [
        *sorted(threads.items(), key=lambda each: (order.get(each[0], 2), each[0])),
        *(
            (name if number == 1 else f"{name} {number}", row)
            for name, own in rows.items()
            for number, row in enumerate(own, start=1)
        ),
    ]


def _last_to_begin(
    ranks: Iterable[RankTrace], alignment: Alignment
) -> dict[tuple[str, int], tuple[int, float]]:
    """By group and number of a collective: the rank that began it last, and when."""
    found: dict[tuple[str, int], tuple[int, float]] = {}
    for trace in ranks:
        for span in trace.spans:
            told = span.exchange
            if told is None or told.number is None or not told.meets:
                continue
            began_ns = _common_ns(trace, alignment, span.began_ns)
            if (key := _key(told)) not in found or found[key][1] < began_ns:
                found[key] = (trace.rank, began_ns)
    return found


def _key(told: Exchange) -> tuple[str, int]:
    return told.group, -1 if told.number is None else told.number


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def _about(pid: int, tid: int, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _common_ns(trace: RankTrace, alignment: Alignment, own_ns: int) -> float:
    return alignment.clocks[trace.host].common_ns(own_ns)

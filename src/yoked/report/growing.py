"""What a run measured, while its journal grows: a long one is known by a sample of its lines.

The first look reads a short journal in full. Of a long one it reads lines at even distances, some
around the evaluations, and the last ones in full; each line of the sample stands for the steps
since the one before it. Later looks read what was added.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic_core import from_json

from yoked.core.lines import lines_at, read_part
from yoked.report.metrics import (
    MOST_POINTS,
    EvaluationLine,
    Line,
    ResumedLine,
    RunMetrics,
    StepLine,
    some_that_count,
)
from yoked.shape import amount

# Steps that are kept one by one.
RECENT = 240
# An evaluation is sought among so many lines, around where it must lie.
_AROUND = 12
# Steps between two places of the file that are known; and how often those of a part are looked for.
_KNOWN_EVERY = 64
_CLOSER = 2
# A line with one of these is of a kind that is read here.
_KINDS = ("loss", "val_bpb", "resumed_at")


class Lines(Protocol):
    """A journal, wherever it lies (core/lines.py)."""

    def lines_at(self, offsets: Sequence[int]) -> tuple[int, list[tuple[int, bytes]]]:
        """Its size, and the first whole line at each offset or behind it."""
        ...

    def part(self, offset: int, most_bytes: int) -> bytes:
        """What it has from an offset on, at most so much."""
        ...


@dataclass(frozen=True)
class LocalLines:
    """A journal of this machine. Raises OSError."""

    path: Path

    def lines_at(self, offsets: Sequence[int]) -> tuple[int, list[tuple[int, bytes]]]:
        """As `Lines` says."""
        return lines_at(self.path, offsets)

    def part(self, offset: int, most_bytes: int) -> bytes:
        """As `Lines` says."""
        return read_part(self.path, offset, most_bytes)


@dataclass(frozen=True)
class Reading:
    """How much is read. whole_bytes: of a journal, or of a part of it, that is read in full;
    sample: lines of a longer one; evaluations: sought in it; tail_bytes: of its end.
    """

    whole_bytes: int = 4 << 20
    sample: int = MOST_POINTS
    evaluations: int = 150
    tail_bytes: int = 512 << 10


class GrowingMetrics:
    """A run's journal, and what is known of it by now.

    eval_every: steps between evaluations; None: not known. sampled: lines of it were left out.
    recent: the last steps, each of them. damaged: how many of the lines that were read are no lines
    of a run; first_damaged: the number of the first one; None: not known, or there is none.
    """

    def __init__(self, lines: Lines, reading: Reading = Reading()) -> None:
        self._lines = lines
        self._reading = reading
        self.eval_every: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.metrics = RunMetrics()
        self.recent: deque[StepLine] = deque(maxlen=RECENT)
        self.sampled = False
        self.damaged = 0
        self.first_damaged: int | None = None
        # Lines that were read.
        self._lines_read = 0
        # The last one that is known; -1: none.
        self._attempt = -1
        # Up to here it was read. None: not at all.
        self._end: int | None = None
        # Offsets of lines, and their steps: both grow.
        self._offsets: list[int] = []
        self._steps: list[int] = []

    def update(self) -> bool:
        """Read what was added. Returns whether there was anything. Raises what `Lines` raises."""
        if self._end is None:
            return self._open()
        added = self._lines.part(self._end, self._reading.tail_bytes)
        whole = added[: added.rfind(b"\n") + 1]
        if not whole:
            return False
        raw = _numbered(self._end, whole)
        found = _of_lines(raw)
        if any(self._begins_anew(line) for _, line in found):
            # It may have gone on before the last step: what came after that counts no more.
            self._begin()
            return self._open()
        if len(added) == self._reading.tail_bytes:
            size, _ = self._lines.lines_at(())
            if size - self._end > self._reading.whole_bytes:
                self._begin()
                return self._open()
        self._end += len(whole)
        self._count_damaged(raw, found)
        for offset, line in found:
            self._take(offset, line)
        return True

    def between(self, first: int, last: int, most_points: int) -> RunMetrics:
        """Steps from `first` to `last`: all their lines, where they are not too many."""
        found = RunMetrics(most_points)
        begin, end = self._offset_before(first), self._offset_after(last)
        for _ in range(_CLOSER):
            if end - begin > self._reading.whole_bytes:
                self._know_more(begin, end)
                begin, end = self._offset_before(first), self._offset_after(last)
        if end - begin <= self._reading.whole_bytes:
            some = _counting(begin, self._lines.part(begin, end - begin))
        else:
            count = min(self._reading.sample, most_points)
            some = _of_lines(self._lines.lines_at(_evenly(begin, end, count))[1])
            wanted = [line for _, line in some if first <= _index(line) <= last]
            _take_sample(found, wanted, first, last)
            return found
        for _, line in some:
            if first <= _index(line) <= last:
                found.add(line)
        return found

    # ---- the first look

    def _open(self) -> bool:
        size, _ = self._lines.lines_at(())
        if size <= self._reading.whole_bytes:
            content = self._lines.part(0, self._reading.whole_bytes)
            whole = content[: content.rfind(b"\n") + 1]
            self._end = len(whole)
            raw = _numbered(0, whole)
            found = _of_lines(raw)
            self._count_damaged(raw, found)
            for offset, line in found:
                self._take(offset, line)
            return bool(whole)
        self.sampled = True
        tail_at = size - self._reading.tail_bytes
        tail = self._lines.part(tail_at, self._reading.tail_bytes)
        begin = tail.find(b"\n") + 1
        whole = tail[begin : tail.rfind(b"\n") + 1]
        sample = self._lines.lines_at(_evenly(0, tail_at + begin, self._reading.sample))[1]
        raw = [each for each in sample if each[0] < tail_at + begin]
        last = _numbered(tail_at + begin, whole)
        if self.eval_every:
            known = [(offset, _index(line)) for offset, line in _of_lines(raw + last)]
            raw += self._around_evaluations(known, tail_at + begin, self.eval_every)
        read = sorted(set(raw)) + last
        found = _of_lines(read)
        self._count_damaged(read, found)
        early = [(offset, line) for offset, line in found if offset < tail_at + begin]
        late = found[len(early) :]
        # Old and new steps alike have a point of so many steps.
        first_late = next((line.step for _, line in late if isinstance(line, StepLine)), 0)
        self.metrics.curve.width = max(1, first_late // self._reading.sample)
        for offset, line in early:
            self._know(offset, line)
        _take_sample(self.metrics, [line for _, line in early], 0, max(0, first_late - 1))
        self._end = tail_at + begin + len(whole)
        for offset, line in late:
            self._take(offset, line)
        return True

    def _around_evaluations(
        self, known: Sequence[tuple[int, int]], end: int, every: int
    ) -> list[tuple[int, bytes]]:
        """Lines where evaluations must lie, by the places of the steps that are known."""
        if len(known) < 2:
            return []
        first, last = known[0][1], known[-1][1]
        numbers = range(first // every + 1, last // every + 1)
        stride = max(1, -(-len(numbers) // max(1, self._reading.evaluations)))
        steps = [step for _, step in known]
        offsets = list[int]()
        for number in numbers[::stride]:
            after = min(max(1, bisect_left(steps, number * every)), len(known) - 1)
            (begin, low), (until, high) = known[after - 1], known[after]
            line = (until - begin) / max(1, high - low)
            place = begin + (number * every - low) * line
            offsets += [
                int(place + (each - _AROUND / 2) * line * 0.9) for each in range(_AROUND + 1)
            ]
        wanted = [offset for offset in offsets if 0 <= offset < end]
        found = self._lines.lines_at(wanted)[1]
        # Only evaluations: steps that lie close would stand for nothing.
        return [(at, raw) for at, raw in found if at < end and b'"val_bpb"' in raw]

    # ---- lines as they come

    def _count_damaged(
        self, raw: Sequence[tuple[int, bytes]], found: Sequence[tuple[int, Line]]
    ) -> None:
        """raw: the lines that were read next; found: those of them that count."""
        known = {offset for offset, _ in found}
        for number, (offset, line) in enumerate(raw, start=self._lines_read + 1):
            if offset not in known and _is_damaged(line):
                self.damaged += 1
                if self.first_damaged is None and not self.sampled:
                    self.first_damaged = number
        self._lines_read += len(raw)

    def _begins_anew(self, line: Line) -> bool:
        """Whether a line may be a later attempt's first."""
        if isinstance(line, StepLine):
            return line.attempt > self._attempt >= 0
        return isinstance(line, ResumedLine)

    def _take(self, offset: int, line: Line) -> None:
        self.metrics.add(line)
        if not isinstance(line, EvaluationLine):
            self._attempt = max(self._attempt, line.attempt)
        if isinstance(line, StepLine):
            self.recent.append(line)
            self._know(offset, line)

    def _know(self, offset: int, line: Line) -> None:
        if isinstance(line, StepLine) and (
            not self._steps or line.step >= self._steps[-1] + _KNOWN_EVERY
        ):
            self._offsets.append(offset)
            self._steps.append(line.step)

    def _know_more(self, begin: int, end: int) -> None:
        """Learn which steps lie between two places."""
        lines = _of_lines(self._lines.lines_at(_evenly(begin, end, _KNOWN_EVERY))[1])
        for offset, line in lines:
            at = bisect_left(self._offsets, offset)
            before = self._steps[at - 1] if at else -1
            after = self._steps[at] if at < len(self._steps) else sys.maxsize
            if isinstance(line, StepLine) and before < line.step < after:
                self._offsets.insert(at, offset)
                self._steps.insert(at, line.step)

    def _offset_before(self, step: int) -> int:
        place = bisect_right(self._steps, step) - 1
        return self._offsets[place] if place >= 0 else 0

    def _offset_after(self, step: int) -> int:
        # An evaluation of the last step comes behind it.
        place = bisect_right(self._steps, step + 1)
        return self._offsets[place] if place < len(self._offsets) else self._end or 0


def _index(line: Line) -> int:
    """The step that a line is about: an evaluation has the number of those before it."""
    return line.step - isinstance(line, EvaluationLine)


def _numbered(offset: int, content: bytes) -> list[tuple[int, bytes]]:
    """Lines, each with its offset."""
    found = []
    for line in content.splitlines(keepends=True):
        found.append((offset, line))
        offset += len(line)
    return found


def _counting(offset: int, content: bytes) -> list[tuple[int, Line]]:
    return _of_lines(_numbered(offset, content))


def _of_lines(raw: Sequence[tuple[int, bytes]]) -> list[tuple[int, Line]]:
    """Those that count, each with its offset."""
    return [(raw[at][0], line) for at, line in some_that_count([line for _, line in raw])]


def _is_damaged(line: bytes) -> bool:
    """Whether a line that does not count is none of a run; others count for nothing as a later
    attempt took their steps again, or are of another kind.
    """
    if some_that_count([line]):
        return False
    try:
        told = from_json(line)
    except ValueError:
        return True
    is_other = isinstance(told, dict) and told.keys().isdisjoint(_KINDS)
    return not (is_other and amount(told.get("step")))


def _evenly(begin: int, end: int, count: int) -> list[int]:
    return [begin + (end - begin) * each // count for each in range(count)]


def _take_sample(found: RunMetrics, lines: Sequence[Line], first: int, last: int) -> None:
    """Take in a sample of the steps from first to last. Each stands for those since the one before
    it, and the last one for those behind it, too.
    """
    steps = [line for line in lines if isinstance(line, StepLine)]
    before = first - 1
    for line in lines:
        if not isinstance(line, StepLine):
            if isinstance(line, (EvaluationLine, ResumedLine)):
                found.add(line)
            continue
        until = last if line is steps[-1] else line.step
        if until > before:
            found.add(line, until - before)
            before = until

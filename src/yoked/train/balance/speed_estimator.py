"""What a step costs each rank, from the steps so far: `fixed_s + rows * row_s`.

Medians over a window: one step in which something else used a host says nothing about its speed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from yoked.costmodel.assignment import LinearCost

# The first steps compile, allocate and fill caches.
WARM_UP_STEPS = 2
WINDOW = 32  # steps
# What a step's time varies by until it is known better, which counts as so many steps of knowledge.
NOISE, NOISE_STEPS = 0.03, 4
# Two figures in a row that are off by so many standard deviations are another speed, not noise.
JUMP_SPREADS = 4.5
# A rank has another speed where its work takes this many times longer or shorter than before.
OTHER_SPEED = 1.25


@dataclass(frozen=True)
class RankStep:
    """What a rank did in a step.

    compute_s: without waiting and sending. fixed_s: the part of it without rows. work: in rows,
    more or less than `rows` where a rank computes for others, or they for it.
    """

    rows: int
    work: float
    compute_s: float
    fixed_s: float


class ChangePointMedian:
    """A figure that stays until it jumps: the median since then, and its standard error."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)

    @property
    def count(self) -> int:
        """How many figures it rests on."""
        return len(self._window)

    @property
    def value(self) -> float | None:
        """The median; None before the first figure."""
        return median(self._window) if self._window else None

    @property
    def error(self) -> float:
        """Standard error of the median, relative to it."""
        # Of normal figures the median's is sqrt(pi / 2) = 1.2533 times the mean's.
        return 1.2533 * _spread(list(self._window)) / math.sqrt(max(1, self.count))

    def add(self, figure: float) -> None:
        """Take in a figure; two that are far off on one side begin anew."""
        self._window.append(figure)
        if self.count <= 2:  # nothing older to compare the last two with
            return
        *older, first, second = self._window
        off = JUMP_SPREADS * _spread(older) * median(older)
        lower, upper = median(older) - off, median(older) + off
        if min(first, second) > upper or max(first, second) < lower:
            self._window = deque((first, second), maxlen=WINDOW)


def _spread(figures: Sequence[float]) -> float:
    """Standard deviation relative to the median, robust, and never below what NOISE leaves."""
    middle = median(figures) if figures else 0.0
    if middle <= 0:
        return NOISE
    # 1.4826 times the median absolute deviation is the standard deviation of normal figures.
    seen = 1.4826 * median(abs(figure - middle) for figure in figures) / middle
    # A variance: that of NOISE_STEPS figures assumed, pooled with those seen.
    known = NOISE_STEPS * NOISE * NOISE + len(figures) * seen * seen
    return math.sqrt(known / (NOISE_STEPS + len(figures)))


class RankSpeed:
    """What one rank's steps have cost so far."""

    def __init__(self) -> None:
        self.row, self.fixed = ChangePointMedian(), ChangePointMedian()
        self._fixed_with_rows: float | None = None
        self._idle = False

    def add(self, step: RankStep) -> None:
        """Take in a step. The first with rows after one without warms up: it does not count."""
        # All that a rank without rows computes is fixed.
        self.fixed.add(step.fixed_s if step.work else max(step.fixed_s, step.compute_s))
        if step.work and not self._idle:
            self.row.add(max(0.0, step.compute_s - step.fixed_s) / step.work)
            self._fixed_with_rows = self.fixed.value
        self._idle = not step.work

    def cost(self, unknown_row_s: float) -> LinearCost:
        """unknown_row_s: of a row where this rank has never computed one."""
        row_s, fixed_s = self.row.value, self.fixed.value or 0.0
        if row_s is None:
            return LinearCost(fixed_s, unknown_row_s, self.row.error)
        if self._idle and self._fixed_with_rows:
            # Its optimizer is all that tells of a rank without rows.
            faster = fixed_s / self._fixed_with_rows
            row_s *= faster if OTHER_SPEED * faster < 1 else 1.0
        return LinearCost(fixed_s, row_s, self.row.error)


class SpeedEstimator:
    """All ranks' costs. speeds: relative, by rank, before the first step; 0 is unknown."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = tuple(speeds)
        self._ranks = [RankSpeed() for _ in speeds]
        self._steps = 0
        self._last: Sequence[RankStep] = ()

    def observe(self, steps: Sequence[RankStep]) -> None:
        """Take in what each rank did in a step."""
        self._steps += 1
        if self._steps <= WARM_UP_STEPS:
            return
        self._last = steps
        for rank, step in zip(self._ranks, steps, strict=True):
            rank.add(step)

    @property
    def known(self) -> bool:
        """Whether every rank that has rows has been seen with some."""
        return bool(self._last) and all(
            rank.row.value is not None
            for rank, step in zip(self._ranks, self._last, strict=True)
            if step.rows
        )

    def costs(self) -> list[LinearCost]:
        """By rank. A rank that never had a row is taken at its speed before the first step."""
        seen = [
            (rank.row.value, speed, step.rows)
            for rank, speed, step in zip(self._ranks, self._speeds, self._last, strict=True)
            if rank.row.value is not None
        ]
        # Seconds of a row times relative speed: a row's work, alike for all ranks.
        work = median(row_s * speed for row_s, speed, _ in seen)
        # Of unknown speed: it was left without rows because one took longer than a step.
        beyond_s = 2 * max(row_s * rows for row_s, _, rows in seen)
        return [
            rank.cost(work / speed if speed and work else beyond_s)
            for rank, speed in zip(self._ranks, self._speeds, strict=True)
        ]

"""Rows by measured speed: how many of a step's rows each rank computes, while the run goes on.

After each step every rank has the same figures of all ranks and comes to the same decision, so
nothing is sent. What a rank takes for a step is modelled as `fixed_s + rows * row_s`; the step
takes as long as its slowest rank, and whole rows are given out such that this is shortest.

Rows move only where that is worth it: by more than 3%, and if the figures are as wrong as may be.
What whole rows leave uneven, handovers of lm_head tokens even out (`yoked.timeline.evening`).
A rank that is too slow for a single row has none. Its optimizer's time tells when it recovers,
and now and then it is given a row to see, at a cost of at most half a percent of the run.

Figures must give the same bits on all hosts: no sums of floats whose order or width a Python
version decides, and no function of libm but the square root, which IEEE 754 fixes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from yoked.timeline.evening import Evening, Handover
from yoked.timeline.fastest import OneHead

Why = Literal["measured", "slower", "faster", "evened", "trial", "tried"]

# A step is shorter by this part, or the rows stay where they are; by the second where one rank has
# the lm_head: of a row without it less depends on a figure that is off.
WORTHWHILE, WORTHWHILE_WITHOUT_HEAD = 0.03, 0.01
# The first steps compile, allocate and fill caches.
WARM_UP_STEPS = 2
FEWEST_SEEN = 2
WINDOW = 32
# What a step's time varies by, until it is known better: so many steps' worth of knowledge.
NOISE, NOISE_STEPS = 0.05, 4
# Standard errors that a figure is taken to be wrong by, to the worse; fewer where it costs little
# to be wrong, because what rows leave uneven is evened out, none where a row has no lm_head.
MARGIN, MARGIN_EVENED, MARGIN_WITHOUT_HEAD = 2.0, 1.0, 0.0
# Two figures in a row that are off by so much are another speed, not noise.
JUMP, JUMP_SPREADS = 0.1, 4.5
# Steps between two changes; twice as many each time that one is taken back within MEMORY_STEPS.
STAY_STEPS, MOST_DOUBLINGS, MEMORY_STEPS = 4, 4, 100
# A rank without rows is tried: not more often than this, and for this part of the run's time.
TRY_EVERY_STEPS, TRY_COST = 50, 0.005
# A trial takes a step to warm up, one to be measured, and one until that is known.
TRIAL_STEPS = 3
# The optimizer of a rank without rows takes this part of the time that it took: it recovers.
RECOVERED = 0.75
NAMED = 1.15


@dataclass(frozen=True)
class Seen:
    """A rank's step. compute_s: without waiting and sending; fixed_s: the part without rows.

    extra: what it computed for others, in rows; below zero, what others did for it.
    """

    rows: int
    compute_s: float
    fixed_s: float
    extra: float = 0.0


@dataclass(frozen=True)
class Cost:
    """What a step costs a rank: fixed_s + (beside + rows) * row_s.

    error: of row_s, relative (one sigma). beside: work for other ranks, whatever rows this one has.
    """

    fixed_s: float
    row_s: float
    error: float = 0.0
    beside: float = 0.0

    def of(self, rows: float) -> float:
        """Seconds of a step with so many rows."""
        return self.fixed_s + (self.beside + rows) * self.row_s

    def off(self, sigmas: float) -> Cost:
        """The cost where row_s is wrong by so many standard errors."""
        return replace(self, row_s=self.row_s * max(0.0, 1.0 + sigmas * self.error))


@dataclass(frozen=True)
class Change:
    """New rows by rank, and why; `rank` is the one that it is about.

    step_s, new_step_s: what a step takes by the measured costs, before and after. handovers: from
    now on, where they are not found in each step; where only these change, rows are as before.
    """

    rows: tuple[int, ...]
    before: tuple[int, ...]
    why: Why
    rank: int | None
    step_s: float
    new_step_s: float
    costs: tuple[Cost, ...]
    handovers: tuple[Handover, ...] = ()


def costs_with_one_head(costs: Sequence[Cost], one: OneHead, rows: int) -> list[Cost]:
    """Costs of rows with their lm_head as those of rows without, where one rank has it for all.

    rows: of a step.
    """
    layers = 1 - one.part
    beside = one.head_work([rows]) / layers
    return [
        replace(cost, row_s=layers * cost.row_s, beside=beside if rank == one.rank else 0.0)
        for rank, cost in enumerate(costs)
    ]


def assign_rows(rows: int, costs: Sequence[Cost], least: Sequence[int] = ()) -> tuple[int, ...]:
    """Whole rows by rank such that the slowest rank is done soonest.

    least: rows that ranks have in any case. One row after the other goes to the rank that would
    be done with it first, lower ranks first: with costs that only grow, this is optimal.
    """
    counts = list(least) or [0] * len(costs)
    assert sum(counts) <= rows, (rows, least)
    ready = [(cost.of(counts[rank] + 1), rank) for rank, cost in enumerate(costs)]
    heapq.heapify(ready)
    for _ in range(rows - sum(counts)):
        _, rank = ready[0]
        counts[rank] += 1
        heapq.heapreplace(ready, (costs[rank].of(counts[rank] + 1), rank))
    return tuple(counts)


def step_s(rows: Sequence[float], costs: Sequence[Cost]) -> float:
    """Seconds of a step: those of its slowest rank."""
    return max(cost.of(count) for cost, count in zip(costs, rows, strict=True))


class Level:
    """A figure that stays until it jumps: the median since then, and how sure that is."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._held: float | None = None

    @property
    def count(self) -> int:
        """How many figures it rests on."""
        return len(self._window)

    @property
    def value(self) -> float | None:
        """The median; after `forget` the last one until there is a new one."""
        return median(self._window) if self._window else self._held

    @property
    def error(self) -> float:
        """Standard error of the median, relative to it."""
        return 1.2533 * _spread(list(self._window)) / math.sqrt(max(1, self.count))

    def add(self, figure: float) -> None:
        """Take in a figure; two that are far off on one side begin a new level."""
        self._window.append(figure)
        if self.count <= 2:
            return
        *older, first, second = self._window
        off = max(JUMP, JUMP_SPREADS * _spread(older)) * median(older)
        lower, upper = median(older) - off, median(older) + off
        if min(first, second) > upper or max(first, second) < lower:
            self._window = deque((first, second), maxlen=WINDOW)

    def forget(self) -> None:
        """What was seen is old: hold its median only until the next figure."""
        self._held = self.value
        self._window.clear()


def _spread(figures: Sequence[float]) -> float:
    """How much figures vary, relative to their median: robust, and never quite certain."""
    middle = median(figures) if figures else 0.0
    if middle <= 0:
        return NOISE
    seen = 1.4826 * median(abs(figure - middle) for figure in figures) / middle
    known = NOISE_STEPS * NOISE * NOISE + len(figures) * seen * seen
    return math.sqrt(known / (NOISE_STEPS + len(figures)))


class Pace:
    """What one rank's steps have cost so far."""

    def __init__(self) -> None:
        self.row, self.fixed = Level(), Level()
        self._fixed_with_rows: float | None = None
        self._idle = False

    def add(self, seen: Seen) -> None:
        """Take in a step. The first with rows after some without warms up: it does not count."""
        work = seen.rows + seen.extra
        self.fixed.add(seen.fixed_s if work else max(seen.fixed_s, seen.compute_s))
        if work and not self._idle:
            self.row.add(max(0.0, seen.compute_s - seen.fixed_s) / work)
            self._fixed_with_rows = self.fixed.value
        self._idle = not work

    def cost(self, unknown_row_s: float) -> Cost:
        """unknown_row_s: of a row where this rank has never computed one."""
        row_s, fixed_s = self.row.value, self.fixed.value or 0.0
        if row_s is None:
            return Cost(fixed_s, unknown_row_s, self.row.error)
        if self._idle and self._fixed_with_rows:
            faster = fixed_s / self._fixed_with_rows
            row_s *= faster if faster < RECOVERED else 1.0
        return Cost(fixed_s, row_s, self.row.error)


class Balancer:
    """Decides after each step how many rows each rank has; the same on all ranks.

    rows: by rank, those of the first step. speeds: relative, by rank, as far as they are known
    before it; 0 is unknown. evening: of what rows leave uneven; none: it stays so. one_head: who
    has the lm_head, where only one rank has it.
    """

    def __init__(
        self,
        rows: Sequence[int],
        speeds: Sequence[float],
        evening: Evening | None = None,
        one_head: OneHead | None = None,
    ) -> None:
        assert len(rows) == len(speeds), (rows, speeds)
        self.rows, self._speeds = tuple(rows), tuple(speeds)
        self.handovers: tuple[Handover, ...] = ()
        self._evening, self._one_head = evening, one_head
        self._paces = [Pace() for _ in rows]
        self._seen_steps = self._since_change = self._reversals = 0
        self._idle_steps = [0] * len(rows)
        self._moved = [0] * len(rows)
        self._basis: list[float] | None = None
        self._trial: tuple[int, tuple[int, ...]] | None = None

    def observe(self, seen: Sequence[Seen]) -> Change | None:
        """Take in what each rank did in a step, oldest step first; a change, where it is due.

        The steps seen may be some behind: what they cost a row holds whatever rows they had.
        """
        self._seen_steps += 1
        self._since_change += 1
        if self._seen_steps <= WARM_UP_STEPS:
            return None
        for pace, one in zip(self._paces, seen, strict=True):
            pace.add(one)
        if self._trial is not None:
            return self._end_trial()
        if any(
            count and pace.row.count < FEWEST_SEEN
            for pace, count in zip(self._paces, self.rows, strict=True)
        ):
            return None
        costs = self._costs()
        self._basis = self._basis or [cost.row_s for cost in costs]
        return self._move(costs) or self._try(costs) or self._even(costs)

    def _costs(self) -> list[Cost]:
        """By rank. A rank that never had a row is taken at its speed before the first step."""
        known = [
            (pace.row.value * speed, pace.row.value * count)
            for pace, speed, count in zip(self._paces, self._speeds, self.rows, strict=True)
            if pace.row.value is not None
        ]
        work = median(work for work, _ in known)
        # Of unknown speed: it was left without rows, so that one was longer than a step.
        beyond_s = 2 * max(took_s for _, took_s in known)
        costs = [
            pace.cost(work / speed if speed and work else beyond_s)
            for pace, speed in zip(self._paces, self._speeds, strict=True)
        ]
        one = self._one_head
        return costs if one is None else costs_with_one_head(costs, one, sum(self.rows))

    def _move(self, costs: Sequence[Cost]) -> Change | None:
        """The best rows, where they are worth it and the last change has had its time."""
        if self._since_change < STAY_STEPS << min(self._reversals, MOST_DOUBLINGS):
            return None
        best = self._best(costs)
        if best == self.rows or not self._worthwhile(self.rows, best, costs):
            return None
        why, rank = self._reason(costs)
        return self._change(best, costs, why, rank)

    def _even(self, costs: Sequence[Cost]) -> Change | None:
        """Other handovers, where that is worth it."""
        if self._evening is None or self._evening.in_step(self.rows):
            return None
        best = self._handovers(self.rows, costs)
        limit = 1 - self._evening.worth((*best, *self.handovers), self.rows)
        now_s = step_s(self._work(self.rows, self.handovers), costs)
        if step_s(self._work(self.rows, best), costs) >= limit * now_s:
            return None
        return self._take(self.rows, costs, "evened", None, best)

    def _best(self, costs: Sequence[Cost]) -> tuple[int, ...]:
        """The best rows, evened out."""
        best = assign_rows(sum(self.rows), costs)
        if self._evening is None:
            return best
        return self._evening.best_rows(best, lambda rank, work: costs[rank].of(work))

    def _handovers(self, rows: Sequence[int], costs: Sequence[Cost]) -> tuple[Handover, ...]:
        """What evens out these rows."""
        if self._evening is None:
            return ()
        return self._evening.evened(rows, lambda rank, work: costs[rank].of(work))

    def _work(self, rows: Sequence[int], handovers: Sequence[Handover]) -> tuple[float, ...]:
        """What ranks compute, in rows."""
        if self._evening is None:
            return tuple(rows)
        extra = self._evening.extra_work(handovers, len(rows))
        return tuple(count + more for count, more in zip(rows, extra, strict=True))

    def _worthwhile(self, rows: Sequence[int], best: Sequence[int], costs: Sequence[Cost]) -> bool:
        """Whether other rows pay, both evened out as well as can be."""
        evens = self._evening is not None and not self._evening.in_step(rows)
        finer = self._one_head is not None
        margin = MARGIN_EVENED if evens else MARGIN_WITHOUT_HEAD if finer else MARGIN
        return worthwhile(
            self._work(rows, self._handovers(rows, costs)),
            self._work(best, self._handovers(best, costs)),
            costs,
            margin,
            WORTHWHILE_WITHOUT_HEAD if finer else WORTHWHILE,
        )

    def _reason(self, costs: Sequence[Cost]) -> tuple[Why, int | None]:
        """The rank whose speed is most unlike that of the last change."""
        assert self._basis is not None, "costs come first"
        ratios = [
            cost.row_s / before if before and cost.row_s else 1.0
            for cost, before in zip(costs, self._basis, strict=True)
        ]
        rank = max(range(len(ratios)), key=lambda rank: max(ratios[rank], 1 / ratios[rank]))
        if max(ratios[rank], 1 / ratios[rank]) < NAMED:
            return "measured", None
        return ("slower" if ratios[rank] > 1 else "faster"), rank

    def _change(
        self, rows: tuple[int, ...], costs: Sequence[Cost], why: Why, rank: int | None
    ) -> Change:
        """Take over new rows for good."""
        moves = [new - old for new, old in zip(rows, self.rows, strict=True)]
        back = any(move * before < 0 for move, before in zip(moves, self._moved, strict=True))
        recent = self._since_change < MEMORY_STEPS
        self._reversals = (self._reversals + back) if recent else 0
        self._moved, self._since_change = moves, 0
        self._basis = [cost.row_s for cost in costs]
        return self._take(rows, costs, why, rank, self._handovers(rows, costs))

    def _take(
        self,
        rows: tuple[int, ...],
        costs: Sequence[Cost],
        why: Why,
        rank: int | None,
        handovers: tuple[Handover, ...] = (),
    ) -> Change:
        before, before_s = self.rows, step_s(self._work(self.rows, self.handovers), costs)
        self.rows, self.handovers = rows, handovers
        after_s = step_s(self._work(rows, handovers), costs)
        in_step = self._evening is not None and self._evening.in_step(rows)
        agreed = () if in_step else handovers
        return Change(rows, before, why, rank, before_s, after_s, tuple(costs), agreed)

    def _try(self, costs: Sequence[Cost]) -> Change | None:
        """Give a rank without rows one, when its turn has come."""
        for rank, count in enumerate(self.rows):
            has_head = self._one_head is not None and self._one_head.rank == rank
            self._idle_steps[rank] = 0 if count or has_head else self._idle_steps[rank] + 1
        now_s = step_s(self._work(self.rows, self.handovers), costs)
        for rank, idle in enumerate(self._idle_steps):
            if idle < TRY_EVERY_STEPS:
                continue
            least = [int(rank == other) for other in range(len(costs))]
            rows = assign_rows(sum(self.rows), costs, least)
            extra_s = TRIAL_STEPS * max(0.0, step_s(rows, costs) - now_s)
            if extra_s <= idle * TRY_COST * now_s:
                self._idle_steps[rank] = 0
                self._trial = (rank, self.rows)
                self._paces[rank].row.forget()
                return self._take(rows, costs, "trial", rank)
        return None

    def _end_trial(self) -> Change | None:
        """Once the rank on trial is measured: the best rows, or those of before."""
        assert self._trial is not None, "no trial"
        rank, before = self._trial
        if not self._paces[rank].row.count:
            return None
        self._trial = None
        costs = self._costs()
        best = self._best(costs)
        if self._worthwhile(before, best, costs):
            return self._change(best, costs, "faster", rank)
        return self._take(before, costs, "tried", rank, self._handovers(before, costs))


def worthwhile(
    rows: Sequence[float],
    best: Sequence[float],
    costs: Sequence[Cost],
    margin: float,
    least: float = WORTHWHILE,
) -> bool:
    """Whether the change makes a step shorter by the part `least`, and still shorter if every
    figure is wrong to its disadvantage, by `margin` standard errors.

    A rank's figure is wrong the same way before and after: too fast where a rank is given rows,
    too slow where rows are taken from it.
    """
    worst = [
        cost.off(margin if after >= before else -margin)
        for cost, before, after in zip(costs, rows, best, strict=True)
    ]
    return step_s(best, costs) < (1 - least) * step_s(rows, costs) and (
        step_s(best, worst) < step_s(rows, worst)
    )

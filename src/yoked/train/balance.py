"""Rows by measured speed: how many of a step's rows each rank computes, while the run goes on.

After each step every rank has the same figures of all ranks and comes to the same decision, so
nothing is sent. What a rank takes for a step is modelled as `fixed_s + rows * row_s`; the step
takes as long as its slowest rank, and whole rows are given out such that this is shortest.

Rows move only where that is worth it: by more than 3%, and if the figures are as wrong as may be.
What whole rows leave uneven, handovers of lm_head tokens even out (`yoked.timeline.evening`).
Where one rank has the lm_head for all, a row costs its layers alone, and that rank has the lm_head
beside its optimizer; should it slow too far, every rank gets the lm_head back.
A rank that is too slow for a single row has none. Its optimizer's time tells when it recovers,
and now and then it is given a row to see, at a cost of at most half a percent of the run.

Figures must give the same bits on all hosts: no sums of floats whose order or width a Python
version decides, and no function of libm but the square root, which IEEE 754 fixes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from yoked.timeline.evening import Evening, Handover

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
# Of a step, what it takes to sum the lm_head's gradient where hosts are unlike (measured at 4:1).
# With the lm_head on one rank a step may be so much longer than with it on all, or all get it.
SUMMING = 0.05
# Less than this part of a row's time is never left to its layers.
MOST_HEAD = 0.95
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

    extra: what it computed for others, in rows; below zero, what others did for it. head_s: of
    compute_s, what `head_rows` rows' way through the lm_head took; 0 where that is not known.
    """

    rows: int
    compute_s: float
    fixed_s: float
    extra: float = 0.0
    head_s: float = 0.0
    head_rows: float = 0.0


@dataclass(frozen=True)
class Cost:
    """What a step costs a rank: fixed_s + rows * row_s.

    error: of row_s, relative (one sigma).
    """

    fixed_s: float
    row_s: float
    error: float = 0.0

    def of(self, rows: float) -> float:
        """Seconds of a step with so many rows."""
        return self.fixed_s + rows * self.row_s

    def off(self, sigmas: float) -> Cost:
        """The cost where row_s is wrong by so many standard errors."""
        return replace(self, row_s=self.row_s * max(0.0, 1.0 + sigmas * self.error))


@dataclass(frozen=True)
class Change:
    """New rows by rank, and why; `rank` is the one that it is about.

    step_s, new_step_s: what a step takes by the measured costs, before and after. handovers: from
    now on, where they are not found in each step; where only these change, rows are as before.
    head_rank: who alone has the lm_head from now on.
    """

    rows: tuple[int, ...]
    before: tuple[int, ...]
    why: Why
    rank: int | None
    step_s: float
    new_step_s: float
    costs: tuple[Cost, ...]
    handovers: tuple[Handover, ...] = ()
    head_rank: int | None = None


@dataclass(frozen=True)
class HeadRule:
    """Whether the lm_head may move, and what is known of it before the first step.

    part: of a row's time, what it takes. one_may: by speeds and the fastest's part, whether that
    rank alone is to have it; none: it stays where it is.
    """

    part: float
    one_may: Callable[[Sequence[float], float], bool] | None = None


def costs_with_one_head(
    costs: Sequence[Cost], parts: Sequence[float], has_it: int, rows: int
) -> list[Cost]:
    """Costs of rows with their lm_head as those of rows without, where one rank has it for all.

    parts: of a row's time, what the lm_head takes, by rank; rows: of a step.
    """
    return [
        replace(
            cost,
            fixed_s=cost.fixed_s + (rows * part * cost.row_s if rank == has_it else 0.0),
            row_s=(1 - part) * cost.row_s,
        )
        for rank, (cost, part) in enumerate(zip(costs, parts, strict=True))
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
        self.restart(self.value)

    def restart(self, figure: float | None) -> None:
        """Hold this figure, and only until the next one."""
        self._held = figure
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
    """What one rank's steps have cost so far.

    head: of a row's way through the lm_head, seconds.
    """

    def __init__(self) -> None:
        self.row, self.fixed, self.head = Level(), Level(), Level()
        self._fixed_with_rows: float | None = None
        self._idle = False

    def add(self, seen: Seen, *, apart: bool) -> None:
        """Take in a step. The first with rows after some without warms up: it does not count.

        apart: rows are counted without their lm_head.
        """
        work = seen.rows if apart else seen.rows + seen.extra
        compute_s = seen.compute_s - (seen.head_s if apart else 0.0)
        self.fixed.add(seen.fixed_s if work else max(seen.fixed_s, compute_s))
        if seen.head_s and seen.head_rows:
            self.head.add(seen.head_s / seen.head_rows)
        if work and not self._idle:
            self.row.add(max(0.0, compute_s - seen.fixed_s) / work)
            self._fixed_with_rows = self.fixed.value
        self._idle = not work

    def head_part(self, *, apart: bool) -> float | None:
        """Of a row's time, what the lm_head takes; None where it is not known by now."""
        head_s, row_s = self.head.value, self.row.value
        if not self.head.count or not head_s or not row_s:
            return None
        return min(MOST_HEAD, head_s / (row_s + (head_s if apart else 0.0)))

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
    before it; 0 is unknown. evening: of what rows leave uneven; none: it stays so. head_rank: who
    has the lm_head, where only one rank has it. rule: whether that may change.
    """

    def __init__(
        self,
        rows: Sequence[int],
        speeds: Sequence[float],
        evening: Evening | None = None,
        head_rank: int | None = None,
        rule: HeadRule | None = None,
    ) -> None:
        assert len(rows) == len(speeds), (rows, speeds)
        self.rows, self._speeds = tuple(rows), tuple(speeds)
        self.handovers: tuple[Handover, ...] = ()
        self.head_rank, self._rule = head_rank, rule or HeadRule(0.0)
        self._evening_of_heads = evening
        self._paces = [Pace() for _ in rows]
        self._parts: list[float | None] = [None] * len(rows)
        self._whole: list[Cost] = []
        self._head_moved = False
        self._seen_steps = self._since_change = self._reversals = 0
        self._idle_steps = [0] * len(rows)
        self._moved = [0] * len(rows)
        self._basis: list[float] | None = None
        self._trial: tuple[int, tuple[int, ...]] | None = None

    @property
    def _evening(self) -> Evening | None:
        return self._evening_of_heads if self.head_rank is None else None

    def observe(self, seen: Sequence[Seen]) -> Change | None:
        """Take in what each rank did in a step, oldest step first; a change, where it is due.

        The steps seen may be some behind: what they cost a row holds whatever rows they had.
        """
        self._seen_steps += 1
        self._since_change += 1
        if self._seen_steps <= WARM_UP_STEPS or self._head_moved:
            # This step had begun before the lm_head moved.
            self._head_moved = False
            return None
        apart = self.head_rank is not None
        for pace, one in zip(self._paces, seen, strict=True):
            pace.add(one, apart=apart)
        if self._trial is not None:
            return self._end_trial()
        if any(
            count and pace.row.count < FEWEST_SEEN
            for pace, count in zip(self._paces, self.rows, strict=True)
        ):
            return None
        costs = self._costs()
        self._basis = self._basis or [cost.row_s for cost in self._whole]
        return self._move_head(costs) or self._move(costs) or self._try(costs) or self._even(costs)

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
        apart = self.head_rank is not None
        for rank, pace in enumerate(self._paces):
            self._parts[rank] = pace.head_part(apart=apart) or self._parts[rank]
        parts = self._head_parts
        self._whole = [
            replace(cost, row_s=cost.row_s / (1 - part)) if apart else cost
            for cost, part in zip(costs, parts, strict=True)
        ]
        if self.head_rank is None:
            return self._whole
        return costs_with_one_head(self._whole, parts, self.head_rank, sum(self.rows))

    @property
    def _head_parts(self) -> list[float]:
        """Of a row's time, what the lm_head takes, by rank; of the rank that has it, or as it was
        reckoned, where a rank's own has not been seen.
        """
        known = self._parts[self.head_rank] if self.head_rank is not None else None
        return [part or known or self._rule.part for part in self._parts]

    @property
    def _stays(self) -> bool:
        """Whether the last change has not had its time yet."""
        return self._since_change < STAY_STEPS << min(self._reversals, MOST_DOUBLINGS)

    def _move_head(self, costs: Sequence[Cost]) -> Change | None:
        """The lm_head to every rank, or to the fastest alone, and the rows that go with it."""
        if self._rule.one_may is None or self._stays or min(c.row_s for c in costs) <= 0:
            return None
        rows, parts, now_s = sum(self.rows), self._head_parts, step_s(self._best(costs), costs)
        if self.head_rank is not None:
            to, after = None, self._whole
            wanted = now_s > (1 + SUMMING) * step_s(assign_rows(rows, after), after)
        else:
            speeds = [1 / cost.row_s for cost in self._whole]
            to = max(range(len(speeds)), key=lambda rank: speeds[rank])
            after = costs_with_one_head(self._whole, parts, to, rows)
            wanted = self._rule.one_may(speeds, parts[to])
            wanted = wanted and step_s(assign_rows(rows, after), after) < (1 + SUMMING / 2) * now_s
        if not wanted:
            return None
        why, rank = self._reason()
        before_s = step_s(self._work(self.rows, self.handovers), costs)
        self.head_rank, self._head_moved = to, True
        for pace, cost in zip(self._paces, after, strict=True):
            pace.row.restart(cost.row_s)
            pace.head.forget()
        change = self._change(self._best(after), after, why, rank)
        return replace(change, step_s=before_s)

    def _move(self, costs: Sequence[Cost]) -> Change | None:
        """The best rows, where they are worth it and the last change has had its time."""
        if self._stays:
            return None
        best = self._best(costs)
        if best == self.rows or not self._worthwhile(self.rows, best, costs):
            return None
        why, rank = self._reason()
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
        finer = self.head_rank is not None
        margin = MARGIN_EVENED if evens else MARGIN_WITHOUT_HEAD if finer else MARGIN
        return worthwhile(
            self._work(rows, self._handovers(rows, costs)),
            self._work(best, self._handovers(best, costs)),
            costs,
            margin,
            WORTHWHILE_WITHOUT_HEAD if finer else WORTHWHILE,
        )

    def _reason(self) -> tuple[Why, int | None]:
        """The rank whose speed is most unlike that of the last change."""
        assert self._basis is not None, "costs come first"
        ratios = [
            cost.row_s / before if before and cost.row_s else 1.0
            for cost, before in zip(self._whole, self._basis, strict=True)
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
        self._basis = [cost.row_s for cost in self._whole]
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
        return Change(
            rows, before, why, rank, before_s, after_s, tuple(costs), agreed, self.head_rank
        )

    def _try(self, costs: Sequence[Cost]) -> Change | None:
        """Give a rank without rows one, when its turn has come."""
        for rank, count in enumerate(self.rows):
            used = count or rank == self.head_rank
            self._idle_steps[rank] = 0 if used else self._idle_steps[rank] + 1
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

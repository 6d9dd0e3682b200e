"""Whether another assignment of rows, and of the lm_head's parts, is worth a change.

Which one is best, `yoked.costmodel.assignment` says. Here is the hysteresis: rows move only where a
step gets faster even if the figures are wrong by two standard errors, and parts of the lm_head,
which take weights with them, only where it gets faster by MIN_SPEEDUP as well. After a change there
is a pause, twice as long where one is taken back. What a step costs, without the odd slow one,
`speed_estimator` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from yoked.costmodel.assignment import LinearCost, assign_rows, level_head_work
from yoked.costmodel.step_plan import MIN_SPEEDUP
from yoked.train.balance.speed_estimator import OTHER_SPEED

Why = Literal["measured", "slower", "faster"]

# A step must get faster also where figures are off by so many standard errors.
SIGMAS = 2.0
# Steps between two changes, doubled each time that one is taken back within MEMORY_STEPS. When the
# pause itself is longer than that, the next one has PAUSE_STEPS again.
PAUSE_STEPS, MEMORY_STEPS = 4, 100


@dataclass(frozen=True)
class Assignment:
    """rows: of a step, by rank. lm_head: by rank, what it computes of a vocab-parallel lm_head, in
    rows: their sum is that of `rows`. Replicated, each rank computes that of its own rows.
    """

    rows: tuple[int, ...]
    lm_head: tuple[float, ...]

    def work(self, head_part: float) -> list[float]:
        """By rank, in rows. head_part: of a row's time, what the lm_head takes."""
        return [
            count + head_part * (head - count)
            for count, head in zip(self.rows, self.lm_head, strict=True)
        ]


@dataclass(frozen=True)
class Reassignment:
    """A new assignment, and why; `rank` is the one that it is about.

    step_s, new_step_s: what a step takes by the measured costs, before and after.
    """

    now: Assignment
    before: Assignment
    why: Why
    rank: int | None
    step_s: float
    new_step_s: float
    costs: tuple[LinearCost, ...]


def best_assignment(
    rows: int, costs: Sequence[LinearCost], head_part: float | None = None
) -> Assignment:
    """Whole rows; of what they leave uneven, a vocab-parallel lm_head's parts make up.

    head_part: of a row's time, what the lm_head takes; None: it is replicated.
    """
    counts = assign_rows(rows, [cost.step_s for cost in costs])
    if not head_part:
        return Assignment(counts, counts)
    step_s = [cost.step_s(count) for cost, count in zip(costs, counts, strict=True)]
    head_s = [head_part * cost.row_s for cost in costs]
    return Assignment(counts, level_head_work(counts, step_s, head_s))


class RowBalancer:
    """Proposes another assignment where it is worth a change; see this module.

    head_part: of a row's time, what a vocab-parallel lm_head takes; None: it is replicated.
    """

    def __init__(self, now: Assignment, head_part: float | None = None) -> None:
        self.now, self.head_part = now, head_part
        self._since_change = self._reversals = 0
        self._moved = [0] * len(now.rows)
        self._basis: list[float] | None = None  # row_s by rank at the last change

    def propose(self, costs: Sequence[LinearCost] | None) -> Reassignment | None:
        """Once a step, with the costs as they are known then. What it returns is taken for done.

        costs: None as long as they are not known.
        """
        self._since_change += 1
        if costs is None:
            return None
        if self._since_change < PAUSE_STEPS << self._reversals:
            return None
        self._basis = self._basis or [cost.row_s for cost in costs]
        best = best_assignment(sum(self.now.rows), costs, self.head_part)
        if best == self.now or not self._worthwhile(best, costs):
            return None
        why, rank = self._reason(costs)
        change = Reassignment(
            best,
            self.now,
            why,
            rank,
            self._step_s(self.now, costs),
            self._step_s(best, costs),
            tuple(costs),
        )
        self._take_over(best, costs)
        return change

    def _step_s(self, assignment: Assignment, costs: Sequence[LinearCost]) -> float:
        """Seconds of a step: those of its slowest rank."""
        work = assignment.work(self.head_part or 0.0)
        return max(cost.step_s(each) for cost, each in zip(costs, work, strict=True))

    def _worthwhile(self, best: Assignment, costs: Sequence[LinearCost]) -> bool:
        # A rank's figure is wrong the same way before and after: the worst is a rank that is slower
        # than measured where it is given work, and faster where work is taken from it.
        before, after = (each.work(self.head_part or 0.0) for each in (self.now, best))
        worst = [
            cost.off_by(SIGMAS if more >= less else -SIGMAS)
            for cost, less, more in zip(costs, before, after, strict=True)
        ]
        # Rows move for nothing. A part of the lm_head that moves takes its weights with it.
        enough = MIN_SPEEDUP if self.head_part else 1.0
        faster = self._step_s(best, costs) * enough < self._step_s(self.now, costs)
        return faster and self._step_s(best, worst) < self._step_s(self.now, worst)

    def _reason(self, costs: Sequence[LinearCost]) -> tuple[Why, int | None]:
        """The rank whose speed is most unlike that of the last change."""
        assert self._basis is not None, "costs come first"
        ratios = [
            cost.row_s / before if before and cost.row_s else 1.0
            for cost, before in zip(costs, self._basis, strict=True)
        ]
        rank = max(range(len(ratios)), key=lambda rank: max(ratios[rank], 1 / ratios[rank]))
        if max(ratios[rank], 1 / ratios[rank]) < OTHER_SPEED:
            return "measured", None
        return ("slower" if ratios[rank] > 1 else "faster"), rank

    def _take_over(self, best: Assignment, costs: Sequence[LinearCost]) -> None:
        moves = [new - old for new, old in zip(best.rows, self.now.rows, strict=True)]
        # A rank that got rows gives some back, or the reverse.
        back = any(move * before < 0 for move, before in zip(moves, self._moved, strict=True))
        recent = self._since_change < MEMORY_STEPS
        self._reversals = (self._reversals + back) if recent else 0
        self._moved, self._since_change, self.now = moves, 0, best
        self._basis = [cost.row_s for cost in costs]

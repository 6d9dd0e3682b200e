"""Who computes what of a step: whole rows, and the lm_head's work, by what they cost each rank."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

# Seconds of a rank's step with so many rows.
StepTime = Callable[[int], float]


@dataclass(frozen=True)
class LinearCost:
    """What a step costs a rank: fixed_s + rows * row_s.

    error: standard error of row_s, relative to it.
    """

    fixed_s: float
    row_s: float
    error: float = 0.0

    def step_s(self, rows: float) -> float:
        """Seconds of a step with so many rows."""
        return self.fixed_s + rows * self.row_s

    def off_by(self, sigmas: float) -> LinearCost:
        """The cost where row_s is wrong by so many standard errors."""
        return replace(self, row_s=self.row_s * max(0.0, 1.0 + sigmas * self.error))


def assign_rows(rows: int, times: Sequence[StepTime]) -> tuple[int, ...]:
    """Whole rows by rank such that the slowest rank is done soonest; a rank may have none.

    One row after the other goes to the rank that would be done with it first, lower ranks first:
    with times that only grow with the rows this is optimal.
    """
    counts = [0] * len(times)
    done = [(step_s(1), rank) for rank, step_s in enumerate(times)]
    heapq.heapify(done)
    for _ in range(rows):
        _, rank = done[0]
        counts[rank] += 1
        heapq.heapreplace(done, (times[rank](counts[rank] + 1), rank))
    return tuple(counts)


def level_head_work(
    rows: Sequence[int], step_s: Sequence[float], head_s: Sequence[float]
) -> tuple[float, ...]:
    """The lm_head's work by rank, in rows, such that all ranks end together as far as they can.

    step_s: of each rank, with the lm_head of its own rows. head_s: the lm_head's, of a row. Only
    the lm_head's work moves, and a rank without rows gets none.
    """
    work = [float(count) for count in rows]
    free = [rank for rank, count in enumerate(rows) if count > 0 and head_s[rank] > 0]
    given = 0.0  # by ranks that have given all they can
    # A last free rank has nobody to share with, but takes what others have given.
    while len(free) > 1 or (free and given):
        weight = sum(1.0 / head_s[rank] for rank in free)  # rows a second
        # All free ranks end at level_s: what they take, less what they give, is `given`.
        level_s = (given + sum(step_s[rank] / head_s[rank] for rank in free)) / weight
        for rank in free:
            work[rank] = rows[rank] + (level_s - step_s[rank]) / head_s[rank]
        over = [rank for rank in free if work[rank] < 0]
        if not over:
            break
        for rank in over:  # slower than the others even without it
            work[rank] = 0.0
            given += rows[rank]
            free.remove(rank)
    return tuple(work)


def split_by_weight(items: int, weights: Sequence[float]) -> list[range]:
    """Consecutive ranges, in the order of ranks, in proportion to the weights.

    Every item has exactly one rank; a rank may have none. What does not divide goes to the largest
    remainders; of equal ones to the heavier rank, then the lower.
    """
    assert items >= 0, items
    assert weights, "no rank"
    total = math.fsum(weights)  # `sum` rounds otherwise before Python 3.12; hosts may differ
    assert min(weights) >= 0 < total, weights
    exact = [items * weight / total for weight in weights]
    counts = [int(share) for share in exact]
    # By the negative remainder: the largest comes first. Weights may differ by less than shares do.
    order = [(counts[rank] - exact[rank], -weight, rank) for rank, weight in enumerate(weights)]
    by_remainder = [rank for *_, rank in sorted(order)]
    for rank in by_remainder[: items - sum(counts)]:
        counts[rank] += 1
    return ranges_of(counts)


def ranges_of(counts: Sequence[int]) -> list[range]:
    """Consecutive ranges of so many items, in the order of ranks."""
    ends = [sum(counts[: rank + 1]) for rank in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

"""Dividing the rows of a step among ranks."""

from __future__ import annotations

from collections.abc import Sequence


def split_rows(rows: int, weights: Sequence[float]) -> list[range]:
    """Consecutive ranges of rows, in the order of ranks, in proportion to the weights.

    Every row has exactly one rank; a rank may have none. What does not divide goes to the
    largest remainders, lower ranks first.
    """
    assert rows >= 0, rows
    assert weights, "no rank"
    assert min(weights) >= 0 < sum(weights), weights
    exact = [rows * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in by_remainder[: rows - sum(counts)]:
        counts[rank] += 1
    ends = [sum(counts[: rank + 1]) for rank in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

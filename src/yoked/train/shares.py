"""Dividing the rows of a step among ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from yoked.timeline.fastest import OneHead
from yoked.train.config import TrainConfig

# A moment's measurement is off by as much when something else starts on a host; the first steps
# tell better.
ALIKE = 1.35


@dataclass(frozen=True)
class Shares:
    """How a run shares out its rows at its start, and why.

    weights: relative, by rank: of rows, or of work where they are speeds (measured). live: whether
    rows move between ranks while it goes on.
    """

    weights: tuple[float, ...]
    live: bool
    reason: str
    measured: bool = False

    def by_work(self, one_head: OneHead) -> Shares:
        """The same with weights of work, where one rank alone has the lm_head."""
        return self if self.measured else replace(self, weights=one_head.work(self.weights))

    def of_rows(self, one_head: OneHead | None) -> list[float]:
        """Weights of rows; with one_head, those of this object are of work."""
        return list(self.weights if one_head is None else one_head.row_weights(self.weights))


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
    return consecutive(counts)


def consecutive(counts: Sequence[int]) -> list[range]:
    """Ranges of so many rows, one after the other, in the order of ranks."""
    ends = [sum(counts[: rank + 1]) for rank in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def settle_shares(
    config: TrainConfig,
    hosts: Sequence[str],
    last_rows: Sequence[int],
    measure: Callable[[], list[float]],
) -> Shares:
    """How rows are shared out at the start. Collective where `measure` is called.

    hosts: the host of each rank. last_rows: where the run has had rows on the same hosts.
    measure: the ranks' speeds; asked for only where the shares rest on them.
    """
    fixed = config.share_weights
    several = len(set(hosts)) > 1 and fixed is None
    asked = config.balance in ("on", "rows")
    live = len(hosts) > 1 and (asked or (config.balance == "auto" and several))
    if fixed is not None:
        return Shares(tuple(map(float, fixed)), live, "as asked for with --shares")
    if last_rows and config.balance != "off":
        return Shares(tuple(map(float, last_rows)), live, "as the run had them last")
    if live:
        speeds = measure()
        if max(speeds) <= ALIKE * min(speeds):
            return Shares((1.0,) * len(hosts), live, "equal parts, by about equal speeds")
        reason = "by the speed of this model's matrix products"
        return Shares(tuple(speeds), live, reason, measured=True)
    return Shares((1.0,) * len(hosts), live, "equal parts")

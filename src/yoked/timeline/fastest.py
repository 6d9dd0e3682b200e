"""The lm_head on the fastest rank alone, where that one is much faster than all others together.

Summed, the lm_head's gradient is most of what a step sends, and each byte costs a slow rank's
processor as much longer as the rank is slow. Where the fastest rank has the time to put all tokens
through it, the others have no lm_head: they send hidden states, get their gradient back, and have
more rows for it.

    fastest   F H B  F h H B  F h H B ..       h: the lm_head of another rank's micro-batch
    another   F F F | B  F B  F B  B ..        F, H, B: layers forward, lm_head, layers backward

To the others it is a cost for each row, to the fastest a cost for the whole step, however few rows
it has itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from yoked.timeline.deferral import Parts
from yoked.timeline.work import RankWork

# The fastest rank's part of all speed, beyond what the lm_head takes of it: so much is left to move
# between ranks when it slows.
LEAST_LEFT = 0.15
# Hidden states are at most as many bytes as the gradient in the smallest payload dtype.
IDS_PER_TOKEN = 4
# Another rank's micro-batches that are on their way, so that it need not wait for each.
FEWEST_WAITING = 3
# A forward pass through the layers, of forward and backward.
FORWARD_PART = 1 / 3


@dataclass(frozen=True)
class OneHead:
    """Who has the lm_head. part: of a row's time, what it takes."""

    rank: int
    part: float

    def work(self, rows: Sequence[float]) -> tuple[float, ...]:
        """What each rank computes, in rows with their lm_head."""
        layers = 1 - self.part
        return tuple(
            layers * count + (self.head_work(rows) if rank == self.rank else 0.0)
            for rank, count in enumerate(rows)
        )

    def head_work(self, rows: Sequence[float]) -> float:
        """The lm_head of all these rows."""
        return self.part * _total(rows)

    def row_weights(self, speeds: Sequence[float]) -> tuple[float, ...]:
        """Relative numbers of rows with which ranks of these speeds are done together."""
        layers = 1 - self.part
        others = [
            0.0 if rank == self.rank else speed / (layers * _total(speeds))
            for rank, speed in enumerate(speeds)
        ]
        left = 1.0
        for each in others:
            left -= each
        return tuple(
            max(0.0, left) if rank == self.rank else each for rank, each in enumerate(others)
        )


def fastest_has_it(
    speeds: Sequence[float], part: float, tokens: int, vocab_size: int, waiting: int
) -> bool:
    """Whether the fastest rank alone does; tokens: of a step; waiting: micro-batches that a rank
    may have on their way (`yoked.timeline.deferral`).
    """
    if len(speeds) < 2 or waiting < FEWEST_WAITING:
        return False
    fastest = max(range(len(speeds)), key=lambda rank: speeds[rank])
    if speeds[fastest] < (part + LEAST_LEFT) * _total(speeds):
        return False
    weights = OneHead(fastest, part).row_weights(speeds)
    return (1 - weights[fastest]) * tokens * IDS_PER_TOKEN <= vocab_size


def _total(figures: Sequence[float]) -> float:
    """The sum, with the same bits whatever Python adds up: `sum` compensates since 3.12."""
    total = 0.0
    for each in figures:
        total += each
    return total


def deferred_by_rank(ranks: int, deferred: int, has_it: int | None) -> list[int]:
    """`deferred_backwards` of each rank; has_it: who alone has the lm_head.

    That one sends nothing of it for which a backward pass would have to wait, and does better to
    find in its caches what the forward pass left there.
    """
    return [1 if rank == has_it else deferred for rank in range(ranks)]


def with_one_head(
    works: Sequence[RankWork], has_it: int, row_head_s: Sequence[float], parts: Sequence[Parts]
) -> list[RankWork]:
    """The ranks' work where the rank `has_it` puts all rows through the lm_head.

    works: as if each had it; row_head_s: a row's way through it, by rank; parts: rows by message.
    """
    found: list[RankWork] = []
    theirs = 0
    for rank, (rows, work, head_s) in enumerate(zip(parts, works, row_head_s, strict=True)):
        if rank == has_it:
            found.append(work)
            continue
        theirs += rows.total
        early_s = max(0.0, work.early_s - rows.early * head_s)
        deferred_forward_s = max(0.0, work.deferred_forward_s - sum(rows.deferred) * head_s)
        # All of AdamW but the tables' idle rows is nearly the lm_head's.
        without = replace(
            work, early_s=early_s, deferred_forward_s=deferred_forward_s, head_s=0.0, adamw_s=0.0
        )
        found.append(replace(without, lacks_head=True))
    helper = found[has_it]
    found[has_it] = replace(
        helper, deferred_forward_s=helper.deferred_forward_s + theirs * row_head_s[has_it]
    )
    return found


def turn(number: int, count: int, waiting: int, own: int) -> int:
    """Before which of the fastest rank's own micro-batches it does another's number `number`.

    count: of the other's micro-batches; own: the fastest's; that many: after all of them. In the
    middle between when it has come and when it is needed, both as parts of a step.
    """
    ahead = min(waiting, count)
    begun = min(number, ahead - 1) + 1
    come = FORWARD_PART * begun + max(0, number + 1 - ahead)
    needed = min(FORWARD_PART * ahead + number, FORWARD_PART * count + (1 - FORWARD_PART) * number)
    return min(own, math.ceil((come + needed) / 2 * own / count))

"""The rows of one step: whose they are, and in which order this rank computes its own.

Shape legend: B rows of a step, b rows of a micro-batch, T tokens a row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.costmodel.schedule import MicroBatchSchedule, schedule_micro_batches
from yoked.train.device import to_device


@dataclass(frozen=True)
class MicroBatch:
    """index: among this rank's of the step; rows: (b, T + 1) token ids, on the device; inputs:
    (b, T), where the embedding tables are; last: of the step.
    """

    index: int
    rows: Tensor
    inputs: Tensor
    last: bool

    @property
    def targets(self) -> Tensor:
        """(b * T,)."""
        return self.rows[:, 1:].flatten()  # the token after each input


@dataclass(frozen=True)
class HeadGroup:
    """Micro-batches that go through the lm_head together.

    keep_pending: backward passes that may still wait once it has been through the head.
    """

    micro_batches: Sequence[MicroBatch]
    keep_pending: int


@dataclass(frozen=True)
class StepBatch:
    """The rows of a step, of all ranks: every rank reads all of them, and computes its own.

    rows_by_rank: (b, T + 1) micro-batches, by rank, in host memory. max_deferred: by rank,
    backward passes that may wait behind the last head; 0: none does. device: that of this rank's
    micro-batches; tables_on_host: whether its embedding tables are in host memory all the same.
    step: from 0.
    """

    rows_by_rank: Sequence[Sequence[Tensor]]
    rank: int
    max_deferred: Sequence[int]
    device: torch.device
    tables_on_host: bool = False
    step: int = 0

    @functools.cached_property
    def micro_batches(self) -> list[MicroBatch]:
        """This rank's, in order."""
        own = self.rows_by_rank[self.rank]
        there = [to_device(rows, self.device) for rows in own]
        looked_up = own if self.tables_on_host else there
        return [
            MicroBatch(i, rows, ids[:, :-1], i == len(own) - 1)
            for i, (rows, ids) in enumerate(zip(there, looked_up, strict=True))
        ]

    def schedule(self, rank: int) -> MicroBatchSchedule:
        """A rank's."""
        return schedule_micro_batches(len(self.rows_by_rank[rank]), self.max_deferred[rank])

    def targets(self, rank: int) -> Tensor:
        """(n,) int64 of all of a rank's tokens."""
        found = [rows[:, 1:].flatten() for rows in self.rows_by_rank[rank]]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    def tokens(self, rank: int) -> int:
        """Of a rank's rows."""
        return sum(rows[:, 1:].numel() for rows in self.rows_by_rank[rank])

    @property
    def grad_scale(self) -> float:
        """The weight of each token's loss: 1 / tokens of the whole step, on every rank.

        With it the gradient of the step is the plain sum over ranks, whatever rows each has.
        """
        return 1.0 / sum(self.tokens(rank) for rank in range(len(self.rows_by_rank)))

    def head_groups(self, *, together: bool) -> Iterator[HeadGroup]:
        """This rank's micro-batches as they go through the lm_head: one by one, or all at once."""
        micro_batches = self.micro_batches
        if together:
            yield HeadGroup(micro_batches, len(micro_batches))
            return
        early, *_, waits = self.schedule(self.rank)
        for each in micro_batches:
            # Early: none; then all so far.
            yield HeadGroup([each], max(0, each.index - early + 1) if waits else 0)


def batch_arithmetic(rows: Sequence[int], batch_sizes: Sequence[int], row_tokens: int) -> str:
    """How a step's tokens come about, in one line for people. rows, and the most of them in a
    micro-batch, by rank.
    """
    tokens = f"{sum(rows) * row_tokens:,} tokens"
    batches = [-(-count // size) for count, size in zip(rows, batch_sizes, strict=True)]
    if len({*rows}) == 1 and len({*batch_sizes}) == 1 and rows[0] % batch_sizes[0] == 0:
        ranks = "1 rank" if len(rows) == 1 else f"{len(rows)} ranks"
        product = (
            f"{ranks} x {_times(batches[0], 'micro-batch', 'micro-batches')} x "
            f"{_times(batch_sizes[0], 'row', 'rows')} x {row_tokens:,} tokens = {tokens}"
        )
    else:
        alike = len({*batch_sizes}) == 1
        sizes = _times(batch_sizes[0], "row", "rows") if alike else f"{_sum_of(batch_sizes)} rows"
        product = (
            f"{_sum_of(rows)} rows x {row_tokens:,} tokens = {tokens}, in {_sum_of(batches)} "
            f"micro-batches of up to {sizes}"
        )
    return product if len(rows) == 1 else f"{product}; gradients are summed once a step"


def _times(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _sum_of(counts: Sequence[int]) -> str:
    """Such as 26+6; of many, their sum."""
    return "+".join(map(str, counts)) if len(counts) <= 8 else f"{sum(counts):,}"

"""The embedding tables' gradients: the rows that a step touches, summed over ranks.

Rows leave in up to four messages (`MicroBatchSchedule.row_buckets`), each when its micro-batches
have gone back and the strategy lets it; only the last has to be waited for. Every rank knows the
rows of all others from the sample stream, so no indices are sent.

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, MessageKind, Tag
from yoked.train.comm.ragged_gather import RaggedGather
from yoked.train.model.row_grads import RowGrads
from yoked.train.step_batch import StepBatch

NAME = "table gradients"


@dataclass
class _RowBucket:
    """One message. rows_by_rank: (U,) int64, sorted; mine: this rank's gradients of its own.

    stop: it is complete with this many micro-batches of this rank's. gather: None where no rank has
    anything to send.
    """

    rows_by_rank: list[Tensor]
    mine: RowGrads
    stop: int
    gather: RaggedGather | None


class EmbeddingGradReducer:
    """Sums the tables' gradients step by step; collective: all ranks call in the same order.

    widths: of the tables, by name; dtype: that in which rows travel; None: their own.
    """

    def __init__(
        self,
        comm: Communicator,
        widths: dict[str, int],
        vocab_size: int,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.comm, self.widths, self.vocab_size = comm, widths, vocab_size
        self.dtype, self.device = dtype, device
        self._used_rows = self._unique(())  # (U,) int64, sorted: that some rank looks up
        self._buckets: list[_RowBucket] = []
        self._sent = 0

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the gradients of each own micro-batch go."""
        if self.comm.active:
            ranks = range(self.comm.world_size)
            by_rank = [batch.schedule(rank).row_buckets for rank in ranks]
            buckets = [list(parts) for parts in zip(*by_rank, strict=True)]  # [bucket][rank]
        else:
            buckets = [[range(len(rows)) for rows in batch.rows_by_rank]]
        self._buckets = [self._bucket(batch, parts, i) for i, parts in enumerate(buckets)]
        self._sent = 0
        every = [rows for bucket in self._buckets for rows in bucket.rows_by_rank]
        self._used_rows = torch.unique(torch.cat(every))  # ranks and buckets have rows in common
        return [
            bucket.mine
            for bucket, parts in zip(self._buckets, buckets, strict=True)
            for _ in parts[batch.rank]  # micro-batches of a bucket add to the same rows
        ]

    def _bucket(self, batch: StepBatch, parts: Sequence[range], index: int) -> _RowBucket:
        """parts: of the micro-batches of each rank, those of this bucket."""
        rows = [
            self._unique([own[i][:, :-1] for i in part])  # the last token is only a target
            for own, part in zip(batch.rows_by_rank, parts, strict=True)
        ]
        mine = RowGrads(rows[batch.rank], self.widths, self.vocab_size)
        numels = [len(each) * sum(self.widths.values()) for each in rows]  # U * E, by rank
        tag, dtype = Tag(MessageKind.TABLE_ROWS, index), self.dtype or mine.flat.dtype
        gather = RaggedGather(self.comm, numels, dtype, tag, NAME) if any(numels) else None
        return _RowBucket(rows, mine, parts[batch.rank].stop, gather)

    def _unique(self, inputs: Sequence[Tensor]) -> Tensor:
        if not inputs:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        found: Tensor = torch.unique(torch.cat([ids.flatten() for ids in inputs]))
        return found

    def send(self, done: int, limit: int | None = None) -> None:
        """Send what is complete once `done` of this rank's micro-batches have gone back.

        limit: of the buckets only so many. NCCL pairs collectives by their order, so all ranks
        send each bucket between the same others.
        """
        for bucket in self._buckets[self._sent : limit]:
            if bucket.stop > done:  # nor are the buckets behind it complete
                return
            self._sent += 1
            if bucket.gather is not None:
                bucket.gather.send(bucket.mine.flat)

    def wait(self) -> RowGrads:
        """The sum over ranks, the same bytes on all of them."""
        if not self.comm.active:
            (bucket,) = self._buckets
            return bucket.mine
        total = RowGrads(self._used_rows, self.widths, self.vocab_size)
        for bucket in self._buckets:
            if bucket.gather is None:
                continue
            # In the order of ranks, so that all ranks round alike.
            for rows, flat in zip(bucket.rows_by_rank, bucket.gather.wait(), strict=True):
                if len(rows):
                    total.add_rows(rows, flat.to(total.flat))  # back to float32 and the device
        self._buckets = []
        return total

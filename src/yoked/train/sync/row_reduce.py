"""The embedding tables' gradients: the rows that a step touches, summed over ranks.

Rows leave in up to four messages (`MicroBatchSchedule.row_buckets`), each when its micro-batches
have gone back and the strategy lets it; only the last has to be waited for. Every rank knows the
rows of all others from the sample stream, so no indices are sent. Where ranks use so many rows
that whole tables are less to send, as with the batches of many GPUs, one all-reduce sums these.

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.costmodel.messages import whole_tables_are_less
from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.train.comm.ragged_gather import RaggedGather
from yoked.train.device import to_device
from yoked.train.model.row_grads import RowGrads
from yoked.train.step_batch import StepBatch
from yoked.train.sync.codecs import Codec, encoded

NAME = "table gradients"


@dataclass
class _Bucket:
    """One message, as far as all have it in common. mine: this rank's gradients of it.

    stop: it is complete with this many micro-batches of this rank's.
    """

    mine: RowGrads
    stop: int


@dataclass
class _RowBucket(_Bucket):
    """Of the rows that micro-batches use. rows_by_rank: (U,) int64, sorted, in host memory.

    gather: None where no rank has anything to send. codec: None: rows travel as they are.
    """

    rows_by_rank: list[Tensor]
    gather: RaggedGather | None
    codec: Codec | None

    def send(self) -> None:
        """To all others."""
        if self.gather is None:
            return
        payload = self.mine.flat
        if self.codec is not None:
            payload = encoded(self.codec, payload.to(self.codec.works_on(payload.device)), None)
        self.gather.send(payload)

    def arrived(self, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (U,) and their gradients (U * width,) fp32, rank by rank."""
        if self.gather is None:
            return
        for rows, payload in zip(self.rows_by_rank, self.gather.wait(), strict=True):
            if not len(rows):
                continue
            if self.codec is None:
                yield rows, payload
                continue
            there = self.codec.works_on(self.mine.flat.device)
            flat = torch.empty(len(rows) * width, device=there)
            self.codec.decode(payload.to(there), flat)
            yield rows, flat


@dataclass
class _WholeTables(_Bucket):
    """Of all rows of the tables, summed by one all-reduce."""

    comm: Communicator
    reducing: Work | None = None

    def send(self) -> None:
        """Begin the sum."""
        self.reducing = self.comm.all_reduce(self.mine.flat, NAME)

    def sum(self) -> RowGrads:
        """Over all ranks."""
        assert self.reducing is not None, "send() comes first"
        self.reducing.wait()
        return self.mine


class EmbeddingGradReducer:
    """Sums the tables' gradients step by step; collective: all ranks call in the same order.

    widths: of the tables, by name; codec: of rows, None: they travel as they are; device: where the
    tables are. What a codec loses is lost: each step touches other rows.
    """

    def __init__(
        self,
        comm: Communicator,
        widths: dict[str, int],
        vocab_size: int,
        codec: Codec | None,
        device: torch.device,
    ) -> None:
        self.comm, self.widths, self.vocab_size = comm, widths, vocab_size
        self.codec, self.device = codec, device
        self._buckets: Sequence[_RowBucket] | Sequence[_WholeTables] = ()
        self._sent = 0

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the gradients of each own micro-batch go."""
        parts = self._parts(batch)  # [bucket][rank]
        rows = [
            [
                self._unique([own[i][:, :-1] for i in part])  # the last token is only a target
                for own, part in zip(batch.rows_by_rank, bucket, strict=True)
            ]
            for bucket in parts
        ]
        self._sent = 0
        if self._whole_tables_are_less(rows):
            every = torch.arange(self.vocab_size, device=self.device)
            micro_batches = len(batch.micro_batches)
            mine = RowGrads(every, self.widths, self.vocab_size)
            self._buckets = [_WholeTables(mine, micro_batches, self.comm)]
            return [mine] * micro_batches
        self._buckets = buckets = [
            self._bucket(by_rank, bucket[batch.rank], batch.rank, index)
            for index, (by_rank, bucket) in enumerate(zip(rows, parts, strict=True))
        ]
        return [
            bucket.mine
            for bucket, part in zip(buckets, parts, strict=True)
            for _ in part[batch.rank]  # micro-batches of a bucket add to the same rows
        ]

    def _parts(self, batch: StepBatch) -> list[list[range]]:
        """The micro-batches that add to each bucket, by rank."""
        if not self.comm.active:
            return [[range(len(rows)) for rows in batch.rows_by_rank]]
        ranks = range(self.comm.world_size)
        by_rank = [batch.schedule(rank).row_buckets for rank in ranks]
        return [list(parts) for parts in zip(*by_rank, strict=True)]

    def _whole_tables_are_less(self, rows: list[list[Tensor]]) -> bool:
        count = sum(len(each) for by_rank in rows for each in by_rank)
        number_bytes = 4 if self.codec is None else self.codec.bits / 8
        return self.comm.active and whole_tables_are_less(count, self.vocab_size, number_bytes)

    def _bucket(self, rows: list[Tensor], part: range, rank: int, index: int) -> _RowBucket:
        """rows: by rank; part: of this rank's micro-batches."""
        mine = RowGrads(self._on_device(rows[rank]), self.widths, self.vocab_size)
        numels = [len(each) * sum(self.widths.values()) for each in rows]  # U * E, by rank
        dtype = mine.flat.dtype
        if self.codec is not None:
            numels, dtype = [self.codec.encoded_bytes(numel) for numel in numels], torch.uint8
        tag = Tag(MessageKind.TABLE_ROWS, index)
        gather = RaggedGather(self.comm, numels, dtype, tag, NAME) if any(numels) else None
        return _RowBucket(mine, part.stop, rows, gather, self.codec)

    def _unique(self, inputs: Sequence[Tensor]) -> Tensor:
        """(U,) int64, sorted. In host memory: the size of a GPU's result would be waited for."""
        used = torch.zeros(self.vocab_size, dtype=torch.bool)
        for ids in inputs:
            used[ids] = True
        return used.nonzero().squeeze(1)

    def _on_device(self, rows: Tensor) -> Tensor:
        return to_device(rows, self.device)

    def send(self, done: int, limit: int | None = None) -> None:
        """Send what is complete once `done` of this rank's micro-batches have gone back.

        limit: of the buckets only so many. NCCL pairs collectives by their order, so all ranks
        send each bucket between the same others.
        """
        for bucket in self._buckets[self._sent : limit]:
            if bucket.stop > done:  # nor are the buckets behind it complete
                return
            if isinstance(bucket, _WholeTables) and limit is not None:
                return  # the last, which all ranks send at the same place
            self._sent += 1
            bucket.mine.settle()
            bucket.send()

    def wait(self) -> RowGrads:
        """The sum over ranks, the same bytes on all of them."""
        buckets, self._buckets = self._buckets, ()
        if not self.comm.active:
            buckets[0].mine.settle()
            return buckets[0].mine
        used = torch.zeros(self.vocab_size, dtype=torch.bool)
        for bucket in buckets:
            if isinstance(bucket, _WholeTables):
                return bucket.sum()
            for rows in bucket.rows_by_rank:  # ranks and buckets have rows in common
                used[rows] = True
        total = RowGrads(self._on_device(used.nonzero().squeeze(1)), self.widths, self.vocab_size)
        for bucket in buckets:
            if isinstance(bucket, _WholeTables):
                continue
            # In the order of ranks, so that all ranks round alike.
            for rows, flat in bucket.arrived(sum(self.widths.values())):
                total.add_rows(self._on_device(rows), flat.to(total.flat))
        return total

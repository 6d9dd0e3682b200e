"""The sum of a flat tensor over ranks, divided by a total, its payload encoded on the way.

Two ranks send each other all of it, and both add what they decode. Of more ranks each owns a
shard: it is sent there, added up, encoded again and sent to all. Either way a rank sends
2(N-1)/N of the payload, as in a ring all-reduce. What is added is float32, in the order of
ranks, and all ranks decode the same bytes: their means are equal to the bit.

An exchange has three stages, so that neither the wire nor the processor waits for the other:

    start     encode, send                       (once the tensor is complete)
    combine   wait, add up, send the sum on      (more than two ranks)
    finish    wait, decode

Each stage is a collective: all ranks call it for their exchanges in the same order. Stages may
run in threads of their own, if `start` and `combine` have a process group each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from yoked.train.sync.codecs import Codec, decode_sum, encoded

Stage = Literal["start", "combine"]


class Carrier(Protocol):
    """The collectives of an exchange; what they return is complete when waited for."""

    @property
    def rank(self) -> int:
        """This process's place."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def gather(self, payload: Tensor, stage: Stage) -> tuple[Tensor, Any]:
        """(N, bytes): every rank's payload, all of one length."""

    def swap(self, rows: Tensor, stage: Stage) -> tuple[Tensor, Any]:
        """(N, bytes): row r is what rank r had for this rank. rows (N, bytes): for each rank."""


@dataclass(frozen=True)
class Groups:
    """Process groups of the same ranks, one for each stage; None: the default group."""

    start: dist.ProcessGroup | None = None
    combine: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """This process's place in them."""
        return dist.get_rank(self.start)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return dist.get_world_size(self.start)

    def gather(self, payload: Tensor, stage: Stage) -> tuple[Tensor, Any]:
        """An all-gather. Traffic a rank: (N-1) payloads."""
        rows = payload.new_empty(self.size, payload.numel())
        group = getattr(self, stage)
        return rows, dist.all_gather(list(rows.unbind()), payload, group=group, async_op=True)

    def swap(self, rows: Tensor, stage: Stage) -> tuple[Tensor, Any]:
        """An all-to-all. Traffic a rank: (N-1)/N of the rows."""
        theirs = torch.empty_like(rows)
        group = getattr(self, stage)
        return theirs, dist.all_to_all_single(theirs, rows, group=group, async_op=True)


@dataclass(frozen=True)
class ErrorFeedback:
    """What rounding has lost so far: of this rank's (n,) numbers, and of the mean that it owns.

    None where nothing is lost, and for the mean of two ranks, which nobody owns.
    """

    own: Tensor | None
    mean: Tensor | None

    @classmethod
    def fresh(cls, codec: Codec, like: Tensor, carrier: Carrier) -> ErrorFeedback:
        """Nothing lost yet of a tensor like this one."""
        if codec.name == "fp32":
            return cls(None, None)
        own = torch.zeros_like(like)
        if carrier.size <= 2:
            return cls(own, None)
        return cls(own, torch.zeros_like(like[shards(like.numel(), carrier.size)[carrier.rank]]))


def shards(numel: int, size: int) -> list[slice]:
    """The part of each rank, as equal as may be."""
    return [slice(*edge) for edge in pairwise(numel * rank // size for rank in range(size + 1))]


class Exchange:
    """One tensor on its way to its mean."""

    def __init__(self, codec: Codec, carrier: Carrier, feedback: ErrorFeedback) -> None:
        self.codec, self.carrier, self.feedback = codec, carrier, feedback

    def start(self, values: Tensor) -> None:
        """Send values, (n,) fp32: this rank's times its weight. They may change afterwards."""
        raise NotImplementedError

    def combine(self, total: float) -> None:
        """Wait for what the others sent. total: the sum of the weights."""
        raise NotImplementedError

    def finish(self, mean: Tensor) -> None:
        """Wait, and leave sum(values) / total in mean, (n,) fp32."""
        raise NotImplementedError


class PairExchange(Exchange):
    """Two ranks. Traffic a rank: the payload."""

    def start(self, values: Tensor) -> None:
        """Encode and send."""
        payload = encoded(self.codec, values, self.feedback.own)
        self._rows, self._work = self.carrier.gather(payload, "start")

    def combine(self, total: float) -> None:
        """Wait for the other's."""
        self._total = total
        self._work.wait()

    def finish(self, mean: Tensor) -> None:
        """Decode both."""
        decode_sum(self.codec, list(self._rows), mean)
        _divide(mean, self._total)


class ShardExchange(Exchange):
    """Any number of ranks. Traffic a rank: 2(N-1)/N of the payload."""

    def start(self, values: Tensor) -> None:
        """Encode, and send each shard to its owner."""
        self._shards = shards(values.numel(), self.carrier.size)
        longest = max(shard.stop - shard.start for shard in self._shards)
        width = self.codec.encoded_bytes(longest)
        rows = torch.zeros(self.carrier.size, width, dtype=torch.uint8, device=values.device)
        for row, shard in zip(rows, self._shards, strict=True):
            lost = None if self.feedback.own is None else self.feedback.own[shard]
            self.codec.encode(values[shard], self._part(row, shard), lost)
        self._rows, self._work = self.carrier.swap(rows, "start")

    def combine(self, total: float) -> None:
        """Add up this rank's shard, and send its mean to all."""
        self._work.wait()
        mine = self._shards[self.carrier.rank]
        mean = torch.empty(mine.stop - mine.start, device=self._rows.device)
        decode_sum(self.codec, [self._part(row, mine) for row in self._rows], mean)
        _divide(mean, total)
        payload = self._rows.new_zeros(self._rows.shape[1])
        self.codec.encode(mean, self._part(payload, mine), self.feedback.mean)
        self._rows, self._work = self.carrier.gather(payload, "combine")

    def finish(self, mean: Tensor) -> None:
        """Decode all shards."""
        self._work.wait()
        for row, shard in zip(self._rows, self._shards, strict=True):
            self.codec.decode(self._part(row, shard), mean[shard])

    def _part(self, row: Tensor, shard: slice) -> Tensor:
        """The bytes of a row that a shard fills: the longest shard fills it all."""
        return row[: self.codec.encoded_bytes(shard.stop - shard.start)]


def new_exchange(codec: Codec, carrier: Carrier, feedback: ErrorFeedback) -> Exchange:
    """The exchange that sends the least between so many ranks."""
    kind = PairExchange if carrier.size <= 2 else ShardExchange
    return kind(codec, carrier, feedback)


def _divide(mean: Tensor, total: float) -> None:
    if total != 1:
        mean *= 1 / total

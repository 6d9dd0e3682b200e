"""The mean of a flat tensor over ranks, encoded on the way: an all-reduce of a payload dtype.

Two ranks send each other all of it, and both add what they decode. Of more ranks each owns a
shard: it is sent there, added up, encoded again and sent to all. Either way a rank sends
2(N-1)/N of the payload, as in a ring all-reduce. What is added is float32, in the order of
ranks, and all ranks decode the same bytes: their means are equal to the bit.

It has three stages, so that neither the wire nor the processor waits for the other:

    start     encode, send                       (once the tensor is complete)
    combine   wait, add up, send the sum on      (more than two ranks)
    finish    wait, decode

Each stage is a collective: all ranks call it for their tensors in the same order. Stages may
run in threads of their own, if `start` and `combine` have a communicator each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, Work
from yoked.train.sync.codecs import Codec, decode_sum, encoded


@dataclass(frozen=True)
class ErrorFeedback:
    """What rounding has lost so far: of this rank's (n,) numbers, and of the mean that it owns.

    None where nothing is lost, and for the mean of two ranks, which nobody owns.
    """

    own: Tensor | None
    mean: Tensor | None

    @classmethod
    def fresh(cls, codec: Codec, like: Tensor, comm: Communicator) -> ErrorFeedback:
        """Nothing lost yet of a tensor like this one."""
        if codec.name == "fp32":
            return cls(None, None)
        own = torch.zeros_like(like)
        if comm.world_size <= 2:
            return cls(own, None)
        owned = shards(like.numel(), comm.world_size)[comm.rank]
        return cls(own, torch.zeros_like(like[owned]))


def shards(numel: int, size: int) -> list[slice]:
    """The part of each rank, as equal as may be."""
    return [slice(*edge) for edge in pairwise(numel * rank // size for rank in range(size + 1))]


class PairReduce:
    """One tensor of two ranks on its way to its mean, for the DDP hook; the trainer's two ranks
    have `dense_reduce.PairAllReduce`. Traffic a rank: the payload.
    """

    def __init__(
        self, codec: Codec, comm: Communicator, feedback: ErrorFeedback, name: str
    ) -> None:
        """name: of the tensor, for errors."""
        self.codec, self.comm, self.feedback, self.name = codec, comm, feedback, name

    def start(self, values: Tensor) -> None:
        """Send values, (n,) fp32: this rank's times its weight. They may change afterwards."""
        payload = encoded(self.codec, values, self.feedback.own)
        self._both, self._work = self.comm.all_gather(payload, self.name)  # (2, bytes) uint8

    def combine(self, total: float) -> None:
        """Wait for the other's. total: the sum of the weights."""
        self._total = total
        self._work.wait()

    def finish(self, mean: Tensor) -> None:
        """Leave sum(values) / total in mean, (n,) fp32."""
        decode_sum(self.codec, list(self._both), mean)
        _divide(mean, self._total)


class ShardedReduce:
    """The same for any number of ranks. Traffic a rank: 2(N-1)/N of the payload."""

    def __init__(
        self,
        codec: Codec,
        comm: Communicator,
        feedback: ErrorFeedback,
        name: str,
        combine_comm: Communicator | None = None,
    ) -> None:
        """combine_comm: of the same ranks, where `combine` runs in another thread than `start`."""
        self.codec, self.comm, self.feedback, self.name = codec, comm, feedback, name
        self._combine_comm = combine_comm or comm
        self._rows: Tensor  # (N, bytes) uint8: all ranks' of this rank's shard; then all shards
        self._work: Work

    def start(self, values: Tensor) -> None:
        """Encode, and send each shard to its owner."""
        self._shards = shards(values.numel(), self.comm.world_size)
        longest = max(shard.stop - shard.start for shard in self._shards)
        width = self.codec.encoded_bytes(longest)
        # (N, bytes): all_to_all_single takes rows of one length, so shorter shards are filled up.
        rows = torch.zeros(self.comm.world_size, width, dtype=torch.uint8, device=values.device)
        for row, shard in zip(rows, self._shards, strict=True):
            # A view: encode leaves in it what this step loses.
            lost = None if self.feedback.own is None else self.feedback.own[shard]
            self.codec.encode(values[shard], self._part(row, shard), lost)
        self._rows, self._work = self.comm.all_to_all(rows, self.name)

    def combine(self, total: float) -> None:
        """Add up this rank's shard, and send its mean to all."""
        self._work.wait()
        mine = self._shards[self.comm.rank]
        mean = torch.empty(mine.stop - mine.start, device=self._rows.device)
        decode_sum(self.codec, [self._part(row, mine) for row in self._rows], mean)
        _divide(mean, total)
        payload = self._rows.new_zeros(self._rows.shape[1])  # (bytes,), as the longest shard
        # The sum is rounded a second time; its owner keeps what that loses.
        self.codec.encode(mean, self._part(payload, mine), self.feedback.mean)
        self._rows, self._work = self._combine_comm.all_gather(payload, self.name)

    def finish(self, mean: Tensor) -> None:
        """Decode all shards."""
        self._work.wait()
        for row, shard in zip(self._rows, self._shards, strict=True):
            self.codec.decode(self._part(row, shard), mean[shard])

    def _part(self, row: Tensor, shard: slice) -> Tensor:
        """The bytes of a row that a shard fills: the longest shard fills it all."""
        return row[: self.codec.encoded_bytes(shard.stop - shard.start)]


def _divide(mean: Tensor, total: float) -> None:
    if total != 1:
        mean *= 1 / total

"""A dense gradient that every rank needs summed, chunk by chunk as it is made.

Two ranks send each other what they have, and both add. Of more, float32 goes through the process
group's own all-reduce; a lossy payload dtype is summed in float32 by a `ShardedReduce`. What it
loses is made good in later steps (error feedback, Seide et al. 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.train.comm.ragged_gather import RaggedGather
from yoked.train.sync.codecs import Codec, decode_sum, encoded
from yoked.train.sync.compressed_reduce import ErrorFeedback, ShardedReduce

PAIR = 2


class PairAllReduce:
    """Sums a flat tensor of two ranks, which send each other each chunk.

    chunks: the same on both. name: of the tensor, for errors. Traffic a rank: the payload.
    """

    def __init__(
        self, comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None, name: str
    ) -> None:
        self.comm, self.flat, self.chunks, self.codec, self.name = comm, flat, chunks, codec, name
        self._device = flat.device if codec is None else codec.works_on(flat.device)
        self.residual = None if codec is None else torch.zeros(flat.shape, device=self._device)
        self._arriving: list[RaggedGather] = []

    def share_losses(self, other: DenseAllReduce) -> None:
        """Make good what `other` has lost, which sums the steps between this one's."""
        assert isinstance(other, PairAllReduce)
        self.residual = other.residual

    def post_receives(self) -> None:
        """Post the receives of all chunks: a step begins."""
        for number, chunk in enumerate(self.chunks):
            numel, dtype = chunk.stop - chunk.start, self.flat.dtype
            if self.codec is not None:
                numel, dtype = self.codec.encoded_bytes(numel), torch.uint8
            numels, tag = [numel] * self.comm.world_size, Tag(MessageKind.DENSE_GRADIENT, number)
            self._arriving.append(RaggedGather(self.comm, numels, dtype, tag, self.name))

    def reduce_chunk(self, number: int) -> None:
        """Encode and send a chunk of this rank's, which must not change before `wait`."""
        chunk = self.chunks[number]
        payload = self.flat[chunk]
        if self.codec is not None:
            assert self.residual is not None
            payload = encoded(self.codec, payload.to(self._device), self.residual[chunk])
        self._arriving[number].send(payload)

    def wait(self) -> None:
        """Add both, decoded. Of two numbers the sum is the same in either order."""
        for chunk, arriving in zip(self.chunks, self._arriving, strict=True):
            both, values = arriving.wait(), self.flat[chunk]  # by rank; the other's in host memory
            if self.codec is None:
                values += both[1 - self.comm.rank].to(values.device)
                continue
            with _on_device(values, self._device) as total:
                # This rank's own as it was sent: the other rank adds the same numbers.
                decode_sum(self.codec, [each.to(self._device) for each in both], total)
        self._arriving = []


class GroupAllReduce:
    """The same for any number of ranks; collective. Traffic a rank: 2(N-1)/N of the payload.

    codec: None between two ranks, which NCCL connects.
    """

    def __init__(
        self, comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None, name: str
    ) -> None:
        self.comm, self.flat, self.chunks, self.codec, self.name = comm, flat, chunks, codec, name
        self._device = flat.device if codec is None else codec.works_on(flat.device)
        self.feedback: list[ErrorFeedback] = []
        if codec is not None and comm.active:
            for chunk in chunks:
                like = flat[chunk].to(self._device)  # only for its shape
                self.feedback.append(ErrorFeedback.fresh(codec, like, comm))
        self._sums: list[Work] = []
        self._compressed: list[tuple[slice, ShardedReduce]] = []

    def share_losses(self, other: DenseAllReduce) -> None:
        """Make good what `other` has lost, which sums the steps between this one's."""
        assert isinstance(other, GroupAllReduce)
        self.feedback = other.feedback

    def post_receives(self) -> None:
        """Nothing: a sum starts on all ranks alike."""

    def reduce_chunk(self, number: int) -> None:
        """Start a chunk's sum; it must not change before `wait`."""
        chunk = self.chunks[number]
        if self.codec is None:
            self._sums.append(self.comm.all_reduce(self.flat[chunk], self.name))
            return
        reduce = ShardedReduce(self.codec, self.comm, self.feedback[number], self.name)
        reduce.start(self.flat[chunk].to(self._device))
        self._compressed.append((chunk, reduce))

    def wait(self) -> None:
        """Wait for all sums."""
        for pending in self._sums:
            pending.wait()
        for _, reduce in self._compressed:
            reduce.combine(1)  # gradients are divided by the step's tokens already
        # A loop of its own: all sums are in flight before the first is waited for.
        for chunk, reduce in self._compressed:
            with _on_device(self.flat[chunk], self._device) as total:
                reduce.finish(total)
        self._sums, self._compressed = [], []


@contextmanager
def _on_device(values: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Where what values are to be is written: on the device where the codec works."""
    there = values if values.device == device else torch.empty(values.shape, device=device)
    yield there
    if there is not values:
        values.copy_(there)


DenseAllReduce = PairAllReduce | GroupAllReduce


def dense_all_reduce(
    comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None, name: str
) -> DenseAllReduce:
    """What sends the least between so many ranks; NCCL has an all-reduce of its own."""
    by_messages = comm.world_size == PAIR and comm.device_group is None
    return (PairAllReduce if by_messages else GroupAllReduce)(comm, flat, chunks, codec, name)

"""A dense gradient that every rank needs summed: the lm_head's, chunk by chunk as it is made.

Two ranks send each other what they have, and both add. Of more, float32 goes through the process
group's own all-reduce; a lossy payload dtype is summed in float32 by a `CompressedReduce`. What it
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
from yoked.train.sync.compressed_reduce import (
    CompressedReduce,
    ErrorFeedback,
    compressed_reduce,
)

WHAT = "the lm_head's gradient"
PAIR = 2


class DenseAllReduce:
    """Sums a flat tensor over all ranks, by chunks that are the same on all of them."""

    def __init__(
        self, comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None
    ) -> None:
        self.comm, self.flat, self.chunks, self.codec = comm, flat, chunks, codec

    def post_receives(self) -> None:
        """A step begins. Collective, as all that follows: all ranks call it in the same order."""

    def reduce_chunk(self, number: int) -> None:
        """A chunk of this rank is complete; it must not change before `wait`."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the tensor holds the sum, the same bytes on all ranks."""
        raise NotImplementedError


class PairAllReduce(DenseAllReduce):
    """Between two ranks, which send each other each chunk. Traffic a rank: the payload."""

    def __init__(
        self, comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None
    ) -> None:
        super().__init__(comm, flat, chunks, codec)
        # In host memory, where the codecs work.
        self._residual = None if codec is None else torch.zeros(flat.shape)
        self._arriving: list[RaggedGather] = []

    def post_receives(self) -> None:
        """Post the receives of all chunks."""
        for number, chunk in enumerate(self.chunks):
            numel, dtype = chunk.stop - chunk.start, self.flat.dtype
            if self.codec is not None:
                numel, dtype = self.codec.encoded_bytes(numel), torch.uint8
            numels, tag = [numel] * self.comm.world_size, Tag(MessageKind.HEAD_GRADIENT, number)
            self._arriving.append(RaggedGather(self.comm, numels, dtype, tag, WHAT))

    def reduce_chunk(self, number: int) -> None:
        """Encode and send a chunk."""
        chunk = self.chunks[number]
        payload = self.flat[chunk]
        if self.codec is not None:
            assert self._residual is not None
            payload = encoded(self.codec, payload.cpu(), self._residual[chunk])
        self._arriving[number].send(payload)

    def wait(self) -> None:
        """Add both, decoded. Of two numbers the sum is the same in either order."""
        for chunk, arriving in zip(self.chunks, self._arriving, strict=True):
            both, values = arriving.wait(), self.flat[chunk]  # by rank; the other's in host memory
            if self.codec is None:
                values += both[1 - self.comm.rank].to(values.device)
                continue
            with _in_host_memory(values) as host:
                # This rank's own as it was sent: the other rank adds the same numbers.
                decode_sum(self.codec, both, host)
        self._arriving = []


class GroupAllReduce(DenseAllReduce):
    """Between any number of ranks. Traffic a rank: 2(N-1)/N of the payload."""

    def __init__(
        self, comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None
    ) -> None:
        super().__init__(comm, flat, chunks, codec)
        self._feedback: list[ErrorFeedback] = []
        if codec is not None and comm.active:
            # In host memory, where the codecs work.
            for chunk in chunks:
                like = torch.empty(chunk.stop - chunk.start)  # only for its shape
                self._feedback.append(ErrorFeedback.fresh(codec, like, comm))
        self._sums: list[Work] = []
        self._compressed: list[tuple[slice, CompressedReduce]] = []

    def reduce_chunk(self, number: int) -> None:
        """Start a chunk's sum."""
        chunk = self.chunks[number]
        if self.codec is None:
            self._sums.append(self.comm.all_reduce(self.flat[chunk], WHAT))
            return
        reduce = compressed_reduce(self.codec, self.comm, self._feedback[number], WHAT)
        reduce.start(self.flat[chunk].cpu())
        self._compressed.append((chunk, reduce))

    def wait(self) -> None:
        """Wait for all sums."""
        for pending in self._sums:
            pending.wait()
        for _, reduce in self._compressed:
            reduce.combine(1)  # gradients are divided by the step's tokens already
        # A loop of its own: all sums are in flight before the first is waited for.
        for chunk, reduce in self._compressed:
            with _in_host_memory(self.flat[chunk]) as host:
                reduce.finish(host)
        self._sums, self._compressed = [], []


@contextmanager
def _in_host_memory(values: Tensor) -> Iterator[Tensor]:
    """Where what values are to be is written: codecs work on the CPU."""
    host = values if values.device.type == "cpu" else torch.empty(values.shape)
    yield host
    if host is not values:
        values.copy_(host)


def dense_all_reduce(
    comm: Communicator, flat: Tensor, chunks: list[slice], codec: Codec | None
) -> DenseAllReduce:
    """What sends the least between so many ranks; NCCL has an all-reduce of its own."""
    by_messages = comm.world_size == PAIR and comm.device_group is None
    return (PairAllReduce if by_messages else GroupAllReduce)(comm, flat, chunks, codec)

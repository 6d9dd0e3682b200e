"""A dense gradient that every rank needs summed: the lm_head's, piece by piece as it is made.

Two ranks send each other what they have, and both add. Of more, float32 goes through the process
group's own all-reduce; a lossy payload dtype is summed in float32 by an `exchange`. What a lossy
payload loses is made good in later steps (error feedback, Seide et al. 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.train.comm.ragged_gather import RaggedGather
from yoked.train.sync.codecs import Codec, decode_sum, encoded
from yoked.train.sync.exchange import Exchange, Feedback, Stage, new_exchange

WHAT = "the lm_head's gradient"
PAIR = 2


class DenseSum:
    """Sums a flat tensor over all ranks, by pieces that are the same on all of them."""

    def __init__(
        self, comm: Communicator, flat: Tensor, pieces: list[slice], codec: Codec | None
    ) -> None:
        self.comm, self.flat, self.pieces, self.codec = comm, flat, pieces, codec

    def expect(self) -> None:
        """A step begins. Collective, as all that follows: all ranks call it in the same order."""

    def ready(self, number: int) -> None:
        """A piece of this rank is complete; it must not change before `finish`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until the tensor holds the sum, the same bytes on all ranks."""
        raise NotImplementedError


class PairSum(DenseSum):
    """Between two ranks, which send each other each piece. Traffic a rank: the payload."""

    def __init__(
        self, comm: Communicator, flat: Tensor, pieces: list[slice], codec: Codec | None
    ) -> None:
        super().__init__(comm, flat, pieces, codec)
        # In host memory, where the codecs work.
        self._lost = None if codec is None else torch.zeros(flat.shape)
        self._arriving: list[RaggedGather] = []

    def expect(self) -> None:
        """Post the receives of all pieces."""
        for number, piece in enumerate(self.pieces):
            numel, dtype = piece.stop - piece.start, self.flat.dtype
            if self.codec is not None:
                numel, dtype = self.codec.encoded_bytes(numel), torch.uint8
            numels, tag = [numel] * self.comm.world_size, Tag(MessageKind.HEAD_GRADIENT, number)
            self._arriving.append(RaggedGather(self.comm, numels, dtype, tag, WHAT))

    def ready(self, number: int) -> None:
        """Encode and send a piece."""
        piece = self.pieces[number]
        payload = self.flat[piece]
        if self.codec is not None:
            assert self._lost is not None
            payload = encoded(self.codec, payload.cpu(), self._lost[piece])
        self._arriving[number].send(payload)

    def finish(self) -> None:
        """Add both, decoded. Of two numbers the sum is the same in either order."""
        for piece, arriving in zip(self.pieces, self._arriving, strict=True):
            both, values = arriving.wait(), self.flat[piece]
            if self.codec is None:
                values += both[1 - self.comm.rank].to(values.device)
                continue
            with _in_host_memory(values) as host:
                decode_sum(self.codec, both, host)
        self._arriving = []


class ManySum(DenseSum):
    """Between any number of ranks. Traffic a rank: 2(N-1)/N of the payload."""

    def __init__(
        self, comm: Communicator, flat: Tensor, pieces: list[slice], codec: Codec | None
    ) -> None:
        super().__init__(comm, flat, pieces, codec)
        self._carrier = _WireCarrier(comm)
        self._feedback: list[Feedback] = []
        if codec is not None and comm.active:
            # In host memory, where the codecs work.
            for piece in pieces:
                like = torch.empty(piece.stop - piece.start)
                self._feedback.append(Feedback.fresh(codec, like, self._carrier))
        self._sums: list[Work] = []
        self._exchanges: list[tuple[slice, Exchange]] = []

    def ready(self, number: int) -> None:
        """Start a piece's sum."""
        piece = self.pieces[number]
        if self.codec is None:
            self._sums.append(self.comm.all_reduce(self.flat[piece], WHAT))
            return
        exchange = new_exchange(self.codec, self._carrier, self._feedback[number])
        exchange.start(self.flat[piece].cpu())
        self._exchanges.append((piece, exchange))

    def finish(self) -> None:
        """Wait for all sums."""
        for pending in self._sums:
            pending.wait()
        for _, exchange in self._exchanges:
            exchange.combine(1)
        for piece, exchange in self._exchanges:
            with _in_host_memory(self.flat[piece]) as host:
                exchange.finish(host)
        self._sums, self._exchanges = [], []


@contextmanager
def _in_host_memory(values: Tensor) -> Iterator[Tensor]:
    """Where what values are to be is written: codecs work on the CPU."""
    host = values if values.device.type == "cpu" else torch.empty(values.shape)
    yield host
    if host is not values:
        values.copy_(host)


def dense_sum(
    comm: Communicator, flat: Tensor, pieces: list[slice], codec: Codec | None
) -> DenseSum:
    """What sends the least between so many ranks; NCCL has an all-reduce of its own."""
    by_messages = comm.world_size == PAIR and comm.device_group is None
    return (PairSum if by_messages else ManySum)(comm, flat, pieces, codec)


@dataclass(frozen=True)
class _WireCarrier:
    """A wire as an exchange sees it."""

    comm: Communicator

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.world_size

    def gather(self, payload: Tensor, stage: Stage) -> tuple[Tensor, Work]:
        del stage
        return self.comm.all_gather(payload, WHAT)

    def swap(self, rows: Tensor, stage: Stage) -> tuple[Tensor, Work]:
        del stage
        return self.comm.all_to_all(rows, WHAT)

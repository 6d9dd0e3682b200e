"""A dense gradient that every rank needs summed: the lm_head's, piece by piece as it is made.

float32 goes through the process group's own all-reduce; a lossy payload dtype is summed in
float32 by an `exchange`, with error feedback (Seide et al. 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.sync.codecs import Codec
from yoked.train.sync.exchange import Exchange, Feedback, Stage, new_exchange
from yoked.train.sync.wire import Pending, Wire

WHAT = "the lm_head's gradient"


class DenseSum:
    """Sums a flat tensor over all ranks, by pieces that are the same on all of them."""

    def __init__(self, wire: Wire, flat: Tensor, pieces: list[slice], codec: Codec | None) -> None:
        self.wire, self.flat, self.pieces, self.codec = wire, flat, pieces, codec
        self._carrier = _WireCarrier(wire)
        self._feedback: list[Feedback] = []
        if codec is not None and wire.active:
            # In host memory, where the codecs work.
            for piece in pieces:
                like = torch.empty(piece.stop - piece.start)
                self._feedback.append(Feedback.fresh(codec, like, self._carrier))
        self._sums: list[Pending] = []
        self._exchanges: list[tuple[slice, Exchange]] = []

    def ready(self, number: int) -> None:
        """A piece of this rank is complete. Collective: all ranks call this in the same order."""
        piece = self.pieces[number]
        if self.codec is None:
            self._sums.append(self.wire.all_reduce(self.flat[piece], WHAT))
            return
        exchange = new_exchange(self.codec, self._carrier, self._feedback[number])
        exchange.start(self.flat[piece].cpu())
        self._exchanges.append((piece, exchange))

    def finish(self) -> None:
        """Wait until the tensor holds the sum."""
        for pending in self._sums:
            pending.wait()
        for _, exchange in self._exchanges:
            exchange.combine(1)
        for piece, exchange in self._exchanges:
            values = self.flat[piece]
            host = values if values.device.type == "cpu" else torch.empty(values.shape)
            exchange.finish(host)
            if host is not values:
                values.copy_(host)
        self._sums, self._exchanges = [], []


@dataclass(frozen=True)
class _WireCarrier:
    """A wire as an exchange sees it."""

    wire: Wire

    @property
    def rank(self) -> int:
        return self.wire.rank

    @property
    def size(self) -> int:
        return self.wire.world_size

    def gather(self, payload: Tensor, stage: Stage) -> tuple[Tensor, Pending]:
        del stage
        return self.wire.gather_all(payload, WHAT)

    def swap(self, rows: Tensor, stage: Stage) -> tuple[Tensor, Pending]:
        del stage
        return self.wire.swap_all(rows, WHAT)

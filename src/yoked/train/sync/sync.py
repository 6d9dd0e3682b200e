"""How ranks combine what they computed: one step after another, behind the computation.

What is learned does not depend on how many ranks took part: the gradient of a step is the sum of
the ranks' (each already divided by the step's tokens). It leaves while it is being made: the
lm_head's piece by piece, each layer's matrices as soon as backward is through with them
(`matrices`), last the rows of the embedding tables. Every rank knows the rows of all others from
the sample stream, so no indices are sent. The new matrices are waited for only when the next
forward pass comes to the layers.

    forward | lm_head        | layers backward | Muon (own)      | AdamW        | forward
              head pieces ->   matrices, rows -> own matrices ->    (arriving)

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.errors import UsageError
from yoked.train.head import block_edges
from yoked.train.optim.layout import Layout, Stack
from yoked.train.sync.dense import DenseSum
from yoked.train.sync.matrices import Matrices, MatricesByCollectives
from yoked.train.sync.payload import PAYLOADS, Payload
from yoked.train.sync.wire import Pending, Wire
from yoked.train.tables import RowGradients


@dataclass
class SyncTimes:
    """Where a step's sync went, seconds of this rank: for slower ranks, and for the wire.

    What the wire did behind the computation is in neither.
    """

    wait_s: float = 0.0
    comm_s: float = 0.0


class Sync:
    """Sums gradients over ranks step by step; collective: all ranks call in the same order."""

    def __init__(self, wire: Wire, layout: Layout, payload: Payload = PAYLOADS["exact"]) -> None:
        self.wire, self.layout, self.payload = wire, layout, payload
        self.times = SyncTimes()
        self.matrices = _matrices(wire, layout, payload)
        width = layout.head_grad.size(1)
        pieces = [slice(a * width, b * width) for a, b in block_edges(layout.head_grad.size(0))]
        self.head = DenseSum(wire, layout.head_grad.view(-1), pieces, payload.dense)
        self._rank_rows: list[Tensor] = []
        # (U,) int64, sorted: rows of the tables that some rank looks up in this step.
        self.used_rows = torch.empty(0, dtype=torch.int64)
        self._mine: RowGradients | None = None
        self._scalars: Pending | None = None
        self._gathered: Tensor | None = None
        self._gathering: Pending | None = None
        self._arrival: Pending | None = None
        self._sends, self._unsent = False, dict.fromkeys(self.matrices.names)
        self._pieces_sent = 0
        if wire.active:
            self._watch_matrices()

    def _watch_matrices(self) -> None:
        for name in self.matrices.names:
            parameter = self.layout.parameters[name]
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: self._made(name)
            )

    # --- a step, in this order

    def begin(self, ids_by_rank: Sequence[Tensor]) -> RowGradients:
        """Start a step; ids_by_rank: the input ids that each rank will look up, any shape.

        Returns where this rank's table gradients go.
        """
        self.times = SyncTimes()
        self._sends, self._pieces_sent = False, 0
        self._unsent = dict.fromkeys(self.matrices.names)
        self._rank_rows = [torch.unique(ids) for ids in ids_by_rank]
        self.used_rows = torch.unique(torch.cat(self._rank_rows))
        vocab = self.layout.model.config.padded_vocab_size
        self._mine = RowGradients(self._rank_rows[self.wire.rank], self.layout.table_widths, vocab)
        if self.wire.active:
            self.matrices.expect()
        return self._mine

    def settle(self) -> None:
        """Until the weights are those of the last step, on all ranks the same bytes."""
        if self.wire.active:
            with self._communicating():
                self.matrices.settle()

    def last_micro_batch(self) -> None:
        """From now on a gradient that is made is complete."""
        self._sends = self.wire.active

    def head_piece_ready(self, number: int) -> None:
        """A piece of this rank's lm_head gradient is complete: send it while backward goes on."""
        if self._sends:
            self.head.ready(number)
            self._pieces_sent = number + 1

    def _made(self, name: str) -> None:
        if self._sends and name in self._unsent:
            del self._unsent[name]
            self.matrices.ready(name)

    def rest_ready(self) -> None:
        """All gradients of this rank are complete."""
        if not self.wire.active:
            return
        # A rank without rows had no forward pass that waited.
        self.settle()
        self.last_micro_batch()
        self._arrival = self.wire.arrival()
        for number in range(self._pieces_sent, len(self.head.pieces)):
            self.head_piece_ready(number)
        for name in list(self._unsent):
            self._made(name)
        self._scalars = self.wire.all_reduce(self.layout.scalar_grads, "scalar gradients")
        self._send_rows()
        self.matrices.expect_updates()

    def _send_rows(self) -> None:
        assert self._mine is not None, "begin() comes first"
        longest = max(len(rows) for rows in self._rank_rows)
        size = longest * sum(self.layout.table_widths.values())
        padded = self._mine.flat.new_zeros(size, dtype=self.payload.rows)
        padded[: self._mine.flat.numel()] = self._mine.flat
        self._gathered, self._gathering = self.wire.gather_all(padded, "table gradients")

    def await_all(self) -> None:
        """Until the slowest rank has made its gradients."""
        if self._arrival is not None:
            started = time.perf_counter()
            self._arrival.wait()
            self._arrival = None
            self.times.wait_s += time.perf_counter() - started

    def collect(self, stack: Stack) -> None:
        """Until the gradients of a stack of this rank's are summed."""
        if self.wire.active:
            with self._communicating():
                self.matrices.collect(stack)

    def before_update(self, stack: Stack) -> Tensor | None:
        """What `share` needs of a stack as it was."""
        return self.matrices.before_update(stack)

    def share(self, stack: Stack, before: Tensor | None) -> None:
        """This rank's stack is new: send it while the rest of the optimizer works."""
        if self.wire.active:
            self.matrices.share(stack, before)

    def finish(self) -> RowGradients:
        """All stacks are shared: wait for every other gradient.

        Returns the summed row gradients, the same bytes on all ranks.
        """
        assert self._mine is not None, "begin() comes first"
        if not self.wire.active:
            return self._mine
        assert self._scalars is not None, "rest_ready() comes first"
        with self._communicating():
            self.head.finish()
            self.matrices.sent()
            self._scalars.wait()
            self.matrices.start_sharing()
            return self._sum_rows()

    def _sum_rows(self) -> RowGradients:
        assert self._gathering is not None
        assert self._gathered is not None
        self._gathering.wait()
        vocab = self.layout.model.config.padded_vocab_size
        total = RowGradients(self.used_rows, self.layout.table_widths, vocab)
        width = sum(self.layout.table_widths.values())
        # In the order of ranks, so that all ranks round alike.
        for rows, flat in zip(self._rank_rows, self._gathered, strict=True):
            if len(rows):
                total.add_rows(rows, flat[: len(rows) * width].to(total.flat.dtype))
        self._gathered = self._gathering = None
        return total

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.times.comm_s += time.perf_counter() - started


def _matrices(wire: Wire, layout: Layout, payload: Payload) -> Matrices:
    if wire.device_group is None:
        return Matrices(wire, layout, payload.dense)
    if not payload.exact:
        raise UsageError(
            f"--sync {payload.name} is for Gloo; every rank here has a GPU, and uses NCCL",
            fix="--sync exact",
        )
    return MatricesByCollectives(wire, layout)

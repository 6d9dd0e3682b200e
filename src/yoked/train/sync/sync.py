"""Exact sync: what is learned does not depend on how many ranks took part.

The gradient of a step is the sum of the ranks' (each already divided by the step's tokens).
The lm_head's travels while the layers' backward pass goes on; each matrix's is summed at its
owner, who sends the new matrix to all, which costs as much as an all-reduce; the tables'
travel as rows. Every rank knows the rows of all others from the sample stream, so no indices
are sent.

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.optim.layout import Layout
from yoked.train.sync.wire import Pending, Wire
from yoked.train.tables import RowGradients


@dataclass
class SyncTimes:
    """Where a step's sync went, seconds of this rank: for slower ranks, and for the wire."""

    wait_s: float = 0.0
    comm_s: float = 0.0


class ExactSync:
    """Sums gradients over ranks step by step; collective: all ranks call in the same order."""

    def __init__(self, wire: Wire, layout: Layout) -> None:
        self.wire, self.layout = wire, layout
        self.times = SyncTimes()
        self._rank_rows: list[Tensor] = []
        self._mine: RowGradients | None = None
        self._pending: list[Pending] = []
        self._gathered: Tensor | None = None
        self._gathering: Pending | None = None
        self._arrival: Pending | None = None

    def begin(self, ids_by_rank: Sequence[Tensor]) -> RowGradients:
        """Start a step; ids_by_rank: the input ids that each rank will look up, any shape.

        Returns where this rank's table gradients go.
        """
        self.times = SyncTimes()
        self._pending = []
        self._rank_rows = [torch.unique(ids) for ids in ids_by_rank]
        vocab = self.layout.model.config.padded_vocab_size
        self._mine = RowGradients(self._rank_rows[self.wire.rank], self.layout.table_widths, vocab)
        return self._mine

    def head_ready(self) -> None:
        """The lm_head's gradient of this rank is complete: send it while backward goes on."""
        self._pending.append(self.wire.all_reduce(self.layout.head_grad, "the lm_head's gradient"))

    def rest_ready(self) -> None:
        """All gradients of this rank are complete."""
        # First in line, so that its arrival tells when the slowest rank was done computing.
        self._arrival = self.wire.all_reduce(torch.zeros(1), "waiting for all ranks")
        for owner, part in self.layout.owner_slices():
            self._pending.append(
                self.wire.reduce_to(self.layout.matrix_grads[part], owner, "matrix gradients")
            )
        self._pending.append(self.wire.all_reduce(self.layout.scalar_grads, "scalar gradients"))
        if self.wire.active:
            self._send_rows()

    def _send_rows(self) -> None:
        assert self._mine is not None, "begin() comes first"
        longest = max(len(rows) for rows in self._rank_rows)
        padded = self._mine.flat.new_zeros(longest * sum(self.layout.table_widths.values()))
        padded[: self._mine.flat.numel()] = self._mine.flat
        self._gathered, self._gathering = self.wire.gather_all(padded, "table gradients")

    def finish(self) -> RowGradients:
        """Wait for all ranks; returns the summed row gradients, the same bytes on all ranks."""
        assert self._mine is not None, "begin() comes first"
        if not self.wire.active:
            return self._mine
        assert self._arrival is not None, "rest_ready() comes first"
        started = time.perf_counter()
        self._arrival.wait()
        arrived = time.perf_counter()
        self.times.wait_s += arrived - started
        for pending in self._pending:
            pending.wait()
        rows = self._sum_rows()
        self.times.comm_s += time.perf_counter() - arrived
        return rows

    def _sum_rows(self) -> RowGradients:
        assert self._gathering is not None
        assert self._gathered is not None
        self._gathering.wait()
        union = torch.unique(torch.cat(self._rank_rows))
        vocab = self.layout.model.config.padded_vocab_size
        total = RowGradients(union, self.layout.table_widths, vocab)
        width = sum(self.layout.table_widths.values())
        # In the order of ranks, so that all ranks round alike.
        for rows, flat in zip(self._rank_rows, self._gathered, strict=True):
            if len(rows):
                total.add_rows(rows, flat[: len(rows) * width])
        self._gathered = self._gathering = None
        return total

    def start_sharing(self) -> None:
        """The owners' matrices are new: send them while the rest of the optimizer works."""
        self._pending = [
            self.wire.broadcast(self.layout.matrices[part], owner, "new matrices")
            for owner, part in self.layout.owner_slices()
        ]

    def finish_sharing(self) -> None:
        """Until every rank has taken over each owner's new matrices."""
        started = time.perf_counter()
        for pending in self._pending:
            pending.wait()
        self.times.comm_s += time.perf_counter() - started

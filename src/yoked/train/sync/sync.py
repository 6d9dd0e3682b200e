"""How ranks combine what they computed: one step after another, behind the computation.

What is learned does not depend on how many ranks took part: the gradient of a step is the sum of
the ranks' (each already divided by the step's tokens). It leaves while it is being made: the
lm_head's piece by piece, each layer's matrices as soon as backward is through with them
(`matrices`), rows of the embedding tables in parts (`rows`). The new matrices are waited for
only when the next forward pass comes to the layers. What hides behind what, where a step has
several micro-batches, is drawn in `yoked.timeline.deferral`.

    forward | lm_head        | layers backward | Muon (own)      | AdamW        | forward
    rows ->   head pieces ->   rows, matrices -> own matrices ->    (arriving)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from yoked.errors import UsageError
from yoked.train.model.cross_entropy import grad_chunk_edges
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.layout import Layout, Stack
from yoked.train.sync.dense import dense_sum
from yoked.train.sync.matrices import Matrices, MatricesByCollectives
from yoked.train.sync.payload import PAYLOADS, Payload
from yoked.train.sync.rows import RowSum
from yoked.train.sync.wire import Pending, Wire


class Moment(IntEnum):
    """How far a rank has come with its gradients of a step."""

    BEGUN = 0
    # All micro-batches are done but those that are deferred.
    DEFERRING = 1
    # The lm_head comes to the last micro-batch: what it adds to the gradient completes it.
    LAST_HEAD = 2
    # The first part of the deferred backward passes is done.
    MOST_BACKWARD = 3
    # Only the last micro-batch's is left.
    LAST_BACKWARD = 4
    DONE = 5


@dataclass
class SyncTimes:
    """Where a step's sync went, seconds of this rank: for slower ranks, and for the wire.

    What the wire did behind the computation is in neither.
    """

    wait_s: float = 0.0
    comm_s: float = 0.0


class Sync:
    """Sums gradients over ranks step by step; collective: all ranks call in the same order."""

    def __init__(
        self,
        wire: Wire,
        layout: Layout,
        payload: Payload = PAYLOADS["exact"],
        *,
        sums_head: bool = True,
    ) -> None:
        """sums_head: as for `sum_head`."""
        self.wire, self.layout, self.payload = wire, layout, payload
        self.times = SyncTimes()
        self.matrices = _matrices(wire, layout, payload)
        self.sum_head(sums_head)
        self.rows = RowSum(
            wire,
            layout.table_widths,
            layout.model.config.padded_vocab_size,
            payload.rows,
            layout.head_grad.device,
        )
        self._scalars: Pending | None = None
        self._arrival: Pending | None = None
        self._reached, self._pieces_sent = Moment.BEGUN, 0
        self._unsent = dict.fromkeys(self.matrices.names)
        if wire.active:
            self._watch_matrices()

    def _watch_matrices(self) -> None:
        for name in self.matrices.names:
            parameter = self.layout.parameters[name]
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: self._made(name)
            )

    def sum_head(self, sums: bool) -> None:
        """Whether the lm_head's gradient is to be summed, or some rank has the sum already.

        Between two steps. What a lossy payload has lost of it so far stays lost.
        """
        width = self.layout.head_grad.size(1)
        edges = grad_chunk_edges(self.layout.head_grad.size(0)) if sums else []
        pieces = [slice(a * width, b * width) for a, b in edges]
        flat = self.layout.head_grad.view(-1)
        self.head = dense_sum(self.wire, flat, pieces, self.payload.dense)

    # --- a step, in this order

    def begin(
        self, ids_by_rank: Sequence[Sequence[Tensor]], deferred: Sequence[int]
    ) -> list[RowGrads]:
        """Start a step; ids_by_rank: the input ids, any shape, of each rank's micro-batches.

        deferred: by rank, how many of them are (`deferred_backwards`). Returns where the gradients
        of each of this rank's micro-batches go.
        """
        self.times = SyncTimes()
        self._reached, self._pieces_sent = Moment.BEGUN, 0
        self._unsent = dict.fromkeys(self.matrices.names)
        tables = self.rows.begin(ids_by_rank, deferred)
        if self.wire.active:
            self.matrices.expect()
            self.head.expect()
        return tables

    def await_matrices(self) -> None:
        """Until this rank's matrices are those of the last step, on all ranks the same bytes."""
        if self.wire.active:
            with self._communicating():
                self.matrices.await_updates()

    def settle(self) -> None:
        """The same, and until nothing of the last step is on its way: weights may change."""
        if self.wire.active:
            with self._communicating():
                self.matrices.settle()

    def reach(self, moment: Moment) -> None:
        """This rank has come so far: what is complete leaves. Again is harmless."""
        if not self.wire.active:
            return
        for each in Moment:
            if self._reached < each <= moment:
                self._reached = each
                if each is not Moment.LAST_HEAD:
                    self.rows.send()

    def head_piece_ready(self, number: int) -> None:
        """A piece of this rank's lm_head gradient is complete: send it while backward goes on."""
        if self._reached >= Moment.LAST_HEAD:
            self.head.ready(number)
            self._pieces_sent = number + 1

    def _made(self, name: str) -> None:
        if self._reached >= Moment.LAST_BACKWARD and name in self._unsent:
            del self._unsent[name]
            self.matrices.ready(name)

    def rest_ready(self) -> None:
        """All gradients of this rank are complete."""
        if not self.wire.active:
            return
        # A rank without rows had no forward pass that waited.
        self.await_matrices()
        self.reach(Moment.LAST_HEAD)
        self._arrival = self.wire.arrival()
        for number in range(self._pieces_sent, len(self.head.pieces)):
            self.head_piece_ready(number)
        self.reach(Moment.LAST_BACKWARD)
        for name in list(self._unsent):
            self._made(name)
        self._scalars = self.wire.all_reduce(self.layout.scalar_grads, "scalar gradients")
        self.reach(Moment.DONE)
        self.matrices.expect_updates()

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

    def finish(self) -> RowGrads:
        """All stacks are shared: wait for every other gradient.

        Returns the summed row gradients, the same bytes on all ranks.
        """
        if not self.wire.active:
            return self.rows.alone()
        assert self._scalars is not None, "rest_ready() comes first"
        with self._communicating():
            self.head.finish()
            self.matrices.sent()
            self._scalars.wait()
            self.matrices.start_sharing()
            return self.rows.sum()

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

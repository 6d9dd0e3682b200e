"""Gradients are used one step late, so their messages have a whole step to travel.

Step s uses the gradients of step s - 1. Those of the matrices may arrive until the middle of step
s: there the owners update their matrices, beside the weights that the step still reads, and the new
ones may arrive until it ends. All others may arrive until the end of step s, when every rank
updates lm_head, scalars and tables. On a link that carries a step's bytes in a step's time nobody
waits for any of them.

    step s - 1  | step s
    backward    | forward | Muon beside the weights | lm_head | backward | AdamW
    gradients -> ...      | new matrices -> ...                          | in place

The delay belongs to the algorithm: it is the same for any number of ranks, also for one, for any
shares, and whoever computes the lm_head. In the first steps, while the learning rate is raised, and
in the last ones no gradient waits. The first step of the delay updates nothing, and the first one
after it updates everything twice, so that each gradient is used once. Late gradients are state
(`yoked.train.optim.late_gradients`).

What that does to the loss: benchmarks/late_sync. Muon bears a delay of one step better than AdamW
(arXiv 2606.30634).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, Work
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.late_gradients import LATE_HEAD, LateGradients, ReplicatedGrads
from yoked.train.optim.param_buffers import Bucket, ParamBuffers, Update
from yoked.train.state import TrainState
from yoked.train.step_batch import StepBatch
from yoked.train.sync.codecs import Codec
from yoked.train.sync.dense_reduce import DenseAllReduce, dense_all_reduce
from yoked.train.sync.matrix_reducer import MatrixReducer, wait_all
from yoked.train.sync.row_reduce import Buckets
from yoked.train.sync.same_step import HEAD_GRADIENT, SameStepSync, for_gloo

# At the end of a run: a tenth of its steps at most.
MOST_ON_TIME_AT_THE_END = 20


@dataclass(frozen=True)
class LateSteps:
    """Steps [first, end) whose gradients are used one step later."""

    first: int
    end: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step < self.end


def late_steps(num_iterations: int, warmup_steps: int) -> LateSteps:
    """Of a run: all but those in which the learning rate is raised, and the last ones."""
    on_time = min(MOST_ON_TIME_AT_THE_END, -(-num_iterations // 10))
    return LateSteps(warmup_steps, num_iterations - on_time)


class LateMatrices(MatrixReducer):
    """Carries matrices whose gradients may arrive in the next step, and new ones until its end.

    gradients: like all matrices; of this rank's stacks, those that the next step uses.
    """

    def __init__(
        self, comm: Communicator, buffers: ParamBuffers, codec: Codec | None, gradients: Tensor
    ) -> None:
        super().__init__(comm, buffers, codec)
        self.gradients, self.updated = gradients, torch.empty_like(buffers.matrices)
        self._put_off: dict[str, list[tuple[Tensor, Work]]] = {}
        self._left_before: list[Work] = []

    def put_off(self) -> None:
        """This step's gradients are for the next one, in which this rank's own may be cleared."""
        assert not self._put_off, "wait_put_off() comes first"
        self._put_off, self._incoming = self._incoming, {}
        for bucket in self.own:
            bucket.view(self.gradients).copy_(bucket.view(self.buffers.matrix_grads))

    def wait_put_off(self, bucket: Bucket) -> None:
        """Until the gradients that were put off are summed, in the order of `wait_reduced`."""
        for name, gradient in zip(bucket.names, bucket.view(self.gradients), strict=True):
            self._add(self._put_off.pop(name, ()), gradient.view(-1))

    def wait_sent(self) -> None:
        """Wait until the last step's gradients have left; this one's are copies."""
        wait_all(self._left_before)
        self._left_before, self._leaving = self._leaving, self._left_before

    def post_early_receives(self) -> None:
        """Post the receives of new matrices that are beside the old ones for now."""
        self._post_parameter_receives(self.updated)

    def take_over(self) -> None:
        """Wait for the others' new matrices, and put all new ones in the place of the old."""
        # Lossy, `wait_parameters` adds to the old ones what came.
        theirs = [bucket for bucket, _, _ in self._updates] if self.codec is None else []
        self.wait_parameters()
        for bucket in (*theirs, *self.own):
            bucket.view(self.buffers.matrices).copy_(bucket.view(self.updated))

    def drain(self) -> None:
        """Until nothing is in flight."""
        for bucket in self.own:
            self.wait_put_off(bucket)
        wait_all(self._left_before)
        wait_all(self._leaving)
        super().drain()

    def _payload(self, gradient: Tensor) -> Tensor:
        # The next step's backward pass does not wait for it to leave.
        return gradient.clone()


class _InFlight(NamedTuple):
    """Gradients on their way, of what every rank updates. scalars_sum: None on a rank alone."""

    head: DenseAllReduce
    scalars: Tensor
    scalars_sum: Work | None
    rows: Buckets


class LateSync(SameStepSync):
    """Sums gradients, which are used one step later. Collective.

    kept: where they wait, registered in `state`. steps: that put theirs off. The rest as
    `SameStepSync` has it.
    """

    matrices: LateMatrices

    def __init__(
        self,
        comm: Communicator,
        buffers: ParamBuffers,
        codec: Codec | None,
        state: TrainState,
        kept: LateGradients,
        steps: LateSteps,
        sums_head: bool,
    ) -> None:
        self._kept, self._state, self.steps = kept, state, steps
        super().__init__(comm, buffers, codec, sums_head=sums_head)
        # The lm_head's gradient of one step travels while the next one is added up in the other.
        flat = kept.head.view(-1)
        self._other_head = dense_all_reduce(comm, flat, self.head.chunks, codec, HEAD_GRADIENT)
        self._other_head.share_losses(self.head)
        self._in_flight: _InFlight | None = None
        self._are_matrices_due = self._is_due = self._puts_off = False
        # New matrices are beside the old ones; may they take their place?
        self._are_beside = self._may_move = False

    # --- a step, in this order

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""
        self._is_due = self._are_matrices_due = batch.step - 1 in self.steps
        self._puts_off = batch.step in self.steps
        return super().begin_step(batch)

    def early_updates(self) -> Iterator[Update]:
        """This rank's stacks, with the gradients of the step before."""
        if not self._are_matrices_due:
            return
        self._are_matrices_due = False
        self.wait_parameters()  # a rank without rows had no forward pass that waited
        self._are_beside = True
        matrices = self.matrices
        if self.comm.active:
            matrices.post_early_receives()
        for bucket in matrices.own:
            matrices.wait_put_off(bucket)
            old, new = bucket.view(self.buffers.matrices), bucket.view(matrices.updated)
            new.copy_(old)
            self._before = old if matrices.sends_differences else None
            yield Update(bucket, new, bucket.view(matrices.gradients))

    def _scalars_to_sum(self) -> Tensor:
        # The next step begins by clearing them.
        scalars = self.buffers.scalar_grads
        return scalars.clone() if self._puts_off else scalars

    def _backward_is_through(self) -> None:
        self._may_move = self._are_beside
        if not self._puts_off:
            self.wait_parameters()  # before they are updated once more
            super()._backward_is_through()

    def updates(self) -> Iterator[Update]:
        """None but in the steps that put nothing off."""
        if not self._puts_off:
            yield from super().updates()
            return
        self._wait_for_all()
        self.matrices.put_off()

    def replicated(self) -> Iterator[ReplicatedGrads]:
        """The gradients of the step before; in a step that puts nothing off, its own too."""
        if self._is_due:
            rows = self._arrived() or self._kept.row_grads()
            yield ReplicatedGrads(self._kept.head, self._kept.scalars, rows)
        if self._puts_off:
            self.matrices.wait_sent()
            self._put_off()
        else:
            yield from super().replicated()

    def _put_off(self) -> None:
        """Keep this step's gradients for the next one; those before are used by now."""
        scalars = self._summing if self.comm.active else self._scalars_to_sum()
        self._in_flight = _InFlight(self.head, scalars, self._scalars, self.rows.take())
        self.head, self._other_head = self._other_head, self.head
        buffers, kept = self.buffers, self._kept
        buffers.head_grad, kept.head = kept.head, buffers.head_grad
        self._state.entries[LATE_HEAD].tensor = kept.head
        # All of it: vocab-parallel, this rank's part may be another one when it is written again.
        buffers.head_grad.zero_()

    def _arrived(self) -> RowGrads | None:
        """Wait for what is in flight; returns the tables' gradients. None: nothing is."""
        if self._in_flight is None:
            return None
        (head, scalars, scalars_sum, rows), self._in_flight = self._in_flight, None
        if scalars_sum is not None:
            head.wait()
            scalars_sum.wait()
        self._kept.scalars.copy_(scalars)
        return self.rows.wait(rows)

    def wait_parameters(self) -> None:
        """Until matrices are those of the last step, on all ranks the same bytes."""
        if self._may_move:
            self._are_beside = self._may_move = False
            self.matrices.take_over()
        elif not self._are_beside:
            super().wait_parameters()

    def drain(self) -> None:
        """The same, and until nothing is in flight and late gradients are where they are kept."""
        self.wait_parameters()
        if (rows := self._arrived()) is not None:
            self._kept.keep_rows(rows)
        if self.comm.active:
            self.matrices.drain()

    def _reducer(self, codec: Codec | None) -> MatrixReducer:
        if self.comm.device_group is not None:
            raise for_gloo("late")
        return LateMatrices(self.comm, self.buffers, codec, self._kept.matrices)

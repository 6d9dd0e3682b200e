"""The lm_head's gradient is used one step late, so it has a step to travel; or the matrices' too.

Step s uses the lm_head's gradient of step s - 1, most of what a step sends. It may arrive until
step s ends, when every rank updates the lm_head. It leaves when the rows of the tables have
arrived, which are used in their own step, as are the scalars' and, by `late-head`, the matrices'.

By `late` the matrices' are those of step s - 1, too. They may arrive until the middle of step s:
there the owners update their matrices, beside the weights that the step still reads, and the new
ones may arrive until it ends. On a link that carries a step's bytes in a step's time nobody waits
for anything but the last rows.

    step s - 1  | step s
    backward    | forward | Muon beside the weights | lm_head | backward | AdamW
    rows -> gradients -> ...      | new matrices -> ...           | rows -> in place

The delay belongs to the algorithm: it is the same for any number of ranks, also for one, for any
shares, and whoever computes the lm_head. In the first steps, while the learning rate is raised, and
in the last ones no gradient waits. Every step has one update: the last gradients before the delay
are used in their own step and in the next, and the last ones of the delay are not. Late gradients
are state (`yoked.train.optim.late_gradients`).

Rows of the tables are few bytes, and most of what a delay would cost of the loss: a word that comes
again in the next step would be read as it was before (benchmarks/late_sync). Muon and the lm_head's
AdamW bear a delay of one step (of Muon arXiv 2606.30634 says so).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.costmodel.work import LATE, LATE_HEAD
from yoked.train.comm.communicator import Communicator, Work
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.late_gradients import LATE_HEAD_GRADIENT, LateGradients
from yoked.train.optim.param_buffers import Bucket, ParamBuffers, ReplicatedGrads, Update
from yoked.train.state import TrainState
from yoked.train.step_batch import StepBatch
from yoked.train.sync.codecs import Codec
from yoked.train.sync.dense_reduce import DenseAllReduce, dense_all_reduce
from yoked.train.sync.matrix_reducer import MatrixReducer, wait_all
from yoked.train.sync.same_step import HEAD_GRADIENT, SameStepSync, for_gloo

# At the end of a run: a tenth of its steps at most.
MOST_ON_TIME_AT_THE_END = 20


@dataclass(frozen=True)
class LateSteps:
    """Steps [first, end), which use the lm_head's gradient of the step before, where there is one.

    matrices: theirs, too.
    """

    first: int
    end: int
    matrices: bool

    def __contains__(self, step: int) -> bool:
        return self.first <= step < self.end


def late_steps(num_iterations: int, warmup_steps: int, *, matrices: bool) -> LateSteps:
    """Of a run: all but those in which the learning rate is raised, and the last ones."""
    on_time = min(MOST_ON_TIME_AT_THE_END, -(-num_iterations // 10))
    return LateSteps(warmup_steps, num_iterations - on_time, matrices)


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
        wait_all(self._leaving)
        super().drain()

    def _payload(self, gradient: Tensor) -> Tensor:
        # The next step's backward pass does not wait for it to leave.
        return gradient.clone()


class LateHeadSync(SameStepSync):
    """Sums gradients; the lm_head's is used one step later. Collective.

    kept: where it waits, registered in `state`. steps: that use the gradient of the step before.
    The rest as `SameStepSync` has it.
    """

    way = LATE_HEAD

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
        if comm.device_group is not None:
            raise for_gloo(self.way)
        self._kept, self._state, self.steps = kept, state, steps
        super().__init__(comm, buffers, codec, sums_head=sums_head)
        # The lm_head's gradient of one step travels while the next one is added up in the other.
        flat = kept.head.view(-1)
        self._other_head = dense_all_reduce(comm, flat, self.head.chunks, codec, HEAD_GRADIENT)
        self._other_head.share_losses(self.head)
        self._in_flight: DenseAllReduce | None = None  # the lm_head's of the step before
        self._is_late = self._keeps = self._holds_back = False
        self._has_kept: bool | None = None

    # --- a step, in this order

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""
        if self._has_kept is None:
            self._has_kept = bool(self._kept.head.any())  # of a checkpoint
        late = self._has_kept and batch.step in self.steps
        if self._is_late and not late:
            self.drain()  # the last ones that were put off, which nobody uses
        self._is_late = self._holds_back = late
        self._keeps = not late and batch.step + 1 in self.steps
        self._has_kept = late or self._keeps
        return super().begin_step(batch)

    def head_grad_ready(self, chunk: int) -> None:
        """A chunk of this rank's lm_head gradient is complete: it leaves behind the rows."""
        if not self._holds_back:
            super().head_grad_ready(chunk)

    def _send_rows(self) -> None:
        if self._holds_back:
            self.rows.send(self._done, limit=-1)
        else:
            super()._send_rows()

    def head_gradient(self) -> Tensor:
        """This step's, or that of the step before."""
        if self._is_late:
            self._await_head()
            return self._kept.head
        gradient = super().head_gradient()
        if self._keeps:
            self._kept.head.copy_(gradient)
        return gradient

    def replicated(self) -> ReplicatedGrads:
        """The scalars' and the tables' gradients of this step; then the late ones leave."""
        grads = super().replicated()
        if self._is_late:
            # Not before: the messages of a small all-reduce would queue up behind these.
            self._holds_back = False
            self._send_late()
            self._put_off_head()
        return grads

    def _send_late(self) -> None:
        self._send_head()

    def _put_off_head(self) -> None:
        """Keep this step's gradient for the next one; that of the step before has been used."""
        self._in_flight = self.head
        self.head, self._other_head = self._other_head, self.head
        buffers, kept = self.buffers, self._kept
        buffers.head_grad, kept.head = kept.head, buffers.head_grad
        self._state.entries[LATE_HEAD_GRADIENT].tensor = kept.head
        # All of it: vocab-parallel, this rank's part may be another one when it is written again.
        buffers.head_grad.zero_()

    def _await_head(self) -> None:
        """Until nothing of the lm_head's gradient is in flight."""
        if self._in_flight is not None and self.comm.active:
            self._in_flight.wait()
        self._in_flight = None

    def drain(self) -> None:
        """Until nothing is in flight and late gradients are where they are kept."""
        self._await_head()
        super().drain()


class LateSync(LateHeadSync):
    """Sums gradients; those of the lm_head and the matrices are used one step later. Collective."""

    way = LATE
    matrices: LateMatrices
    _are_matrices_due = False
    # New matrices are beside the old ones; may they take their place?
    _are_beside = _may_move = False

    # --- a step, in this order

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""
        row_grads = super().begin_step(batch)
        self._are_matrices_due = self._is_late
        return row_grads

    def _grad_accumulated(self, name: str) -> None:
        if not self._holds_back:
            super()._grad_accumulated(name)

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

    def _backward_is_through(self) -> None:
        self._may_move = self._are_beside
        if not self._is_late:
            super()._backward_is_through()

    def updates(self) -> Iterator[Update]:
        """None in the steps that use the gradients of the step before."""
        if self._is_late:
            self._wait_for_all()
            self.matrices.put_off()
            return
        for due in super().updates():
            if self._keeps:
                due.bucket.view(self.matrices.gradients).copy_(due.gradients)
            yield due

    def _send_late(self) -> None:
        self._send_matrices()  # which are waited for first
        super()._send_late()

    def wait_parameters(self) -> None:
        """Until matrices are those of the last step, on all ranks the same bytes."""
        if self._may_move:
            self._are_beside = self._may_move = False
            self.matrices.take_over()
        elif not self._are_beside:
            super().wait_parameters()

    def drain(self) -> None:
        """Until nothing is in flight and late gradients are where they are kept."""
        self.wait_parameters()
        super().drain()

    def _reducer(self, codec: Codec | None) -> MatrixReducer:
        assert self._kept.matrices is not None
        return LateMatrices(self.comm, self.buffers, codec, self._kept.matrices)

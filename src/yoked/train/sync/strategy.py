"""How ranks combine gradients and parameters: what the training step asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.param_buffers import Bucket
from yoked.train.step_batch import StepBatch


class SyncStrategy(Protocol):
    """Called in this order in each step, by all ranks alike, also by one without rows.

    Gradients one step late, or several local steps between two exchanges, are other strategies:
    `reduced_buckets` may yield another step's gradients, or this rank's own. A Bucket says where in
    the buffers its gradients are: they must be there before it is yielded, the lm_head's and the
    scalars' before `wait_replicated` returns. A vocab-parallel lm_head adds its own part itself.
    """

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""

    def head_grad_ready(self, chunk: int) -> None:
        """A chunk of this rank's lm_head gradient is complete: it leaves while backward goes on."""

    def micro_batch_done(self, index: int) -> None:
        """A micro-batch has gone back; they do in order."""

    def backward_done(self) -> None:
        """All gradients of this rank are complete: what has not left yet leaves."""

    def reduced_buckets(self) -> Iterator[Bucket]:
        """This rank's buckets of matrices, each once its gradients are summed."""

    def publish(self, bucket: Bucket) -> None:
        """This rank's bucket is updated: send the new matrices to all ranks."""

    def wait_replicated(self) -> RowGrads:
        """Wait for what every rank updates: lm_head, scalars, and the tables' rows (returned)."""

    def wait_parameters(self) -> None:
        """Until this rank has everybody's new matrices: before the first layer reads them."""

    def drain(self) -> None:
        """The same, and until nothing is in flight: parameters may change."""

    def close(self) -> None:
        """The model may be used without it."""

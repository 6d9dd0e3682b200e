"""How ranks combine gradients and parameters: what the training step asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.param_buffers import ReplicatedGrads, Update
from yoked.train.step_batch import StepBatch


class SyncStrategy(Protocol):
    """Called in this order in each step, by all ranks alike, also by one without rows.

    Several local steps between two exchanges are another strategy: `updates` may yield this
    rank's own gradients. They must be summed before they are yielded. A vocab-parallel lm_head
    adds its own part itself.
    """

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""

    def head_grad_ready(self, chunk: int) -> None:
        """A chunk of this rank's lm_head gradient is complete: it leaves while backward goes on."""

    def early_updates(self) -> Iterator[Update]:
        """This rank's stacks that are due while the step's rows are still computed: between two
        micro-batches, and once more when all are through.
        """

    def micro_batch_done(self, index: int) -> None:
        """A micro-batch has gone back; they do in order."""

    def backward_done(self) -> None:
        """All gradients of this rank are complete: what has not left yet leaves."""

    def updates(self) -> Iterator[Update]:
        """This rank's stacks of matrices, each once its gradients are summed."""

    def publish(self, due: Update) -> None:
        """A stack of this rank's is updated: send the new matrices to all ranks."""

    def head_gradient(self) -> Tensor:
        """The summed gradient of the lm_head (V, C)."""

    def replicated(self) -> ReplicatedGrads:
        """Summed gradients of what else every rank updates."""

    def wait_parameters(self) -> None:
        """Until this rank has everybody's new matrices: before the first layer reads them."""

    def drain(self) -> None:
        """The same, and until nothing is in flight: parameters may change."""

    def close(self) -> None:
        """The model may be used without it."""

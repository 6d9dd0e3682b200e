"""Every rank has the whole lm_head; its gradient is summed over ranks, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from yoked.train.lm_head.protocol import HeadOutput
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.optim.param_buffers import HEAD, ParamBuffers
from yoked.train.step_batch import HeadGroup, StepBatch


class ReplicatedHead:
    """grad_ready: told the number of each chunk of the weight's gradient that is complete."""

    grouped = False
    extra_tokens = 0

    def __init__(
        self,
        buffers: ParamBuffers,
        head: FusedLinearCrossEntropy,
        grad_ready: Callable[[int], None],
    ) -> None:
        self._buffers, self.head, self._grad_ready = buffers, head, grad_ready
        self._weight_VC: Tensor
        self._grad_scale = 0.0

    def begin_step(self, batch: StepBatch) -> None:
        """Cast the weight once."""
        self._grad_scale = batch.grad_scale
        if batch.micro_batches:
            dtype = self._buffers.model.compute_dtype
            self._weight_VC = self._buffers.parameters[HEAD].detach().to(dtype)

    def offer(self, hidden_bTC: Tensor) -> Tensor:
        """Nothing leaves."""
        return hidden_bTC

    def __call__(self, hidden_bTC: Sequence[Tensor], group: HeadGroup) -> HeadOutput:
        """Loss and gradients of one micro-batch; the last one's chunks are complete."""
        ((hidden,), (micro_batch,)) = hidden_bTC, group.micro_batches
        result = self.head.loss(
            hidden.detach().flatten(0, 1),  # (b * T, C); the layers' backward pass begins at hidden
            self._weight_VC,
            micro_batch.targets,
            grad_scale=self._grad_scale,
            weight_grad_VC=self._buffers.head_grad,
            on_grad_chunk=self._grad_ready if micro_batch.last else None,
        )
        assert result.hidden_grad is not None
        return HeadOutput(float(result.loss_sum), [result.hidden_grad.view_as(hidden)])

    def gather(self) -> None:
        """Every rank has it."""

    def assign(self, work: Sequence[float]) -> None:
        """Every rank computes that of its own rows."""

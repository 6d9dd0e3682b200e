"""What the training step asks of an lm_head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from yoked.train.step_batch import HeadGroup, StepBatch


class HeadOutput(NamedTuple):
    """loss_sum: nats of a group's tokens. hidden_grads: (b, T, C) of each micro-batch."""

    loss_sum: float
    hidden_grads: list[Tensor]


class LmHead(Protocol):
    """The last linear layer, softcap and cross-entropy, forward and backward in one.

    Collective where ranks have parts of it: all call in the same order.
    """

    # Whether all of a step's micro-batches go through it together.
    grouped: bool

    def begin_step(self, batch: StepBatch) -> None:
        """Post the receives of a step."""

    def offer(self, hidden_bTC: Tensor) -> Tensor:
        """Take a micro-batch's hidden states, which may leave at once; returns them."""

    def __call__(self, hidden_bTC: Sequence[Tensor], group: HeadGroup) -> HeadOutput:
        """Loss and gradients of a group; adds the weight's gradient to the buffers'."""

    def gather(self) -> None:
        """Until every rank holds the whole weight as it is now."""

    def assign(self, work: Sequence[float]) -> None:
        """From the next step on, relative parts by rank, where ranks have parts."""

    @property
    def extra_tokens(self) -> int:
        """By which this rank's part of a step is more work than its own tokens."""

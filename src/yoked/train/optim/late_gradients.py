"""Summed gradients that the next step uses, where `--sync late` or `late-head` puts them off.

They are state: a checkpoint keeps them, and a run that goes on from it uses them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from yoked.train.optim.param_buffers import HEAD, Bucket, ParamBuffers
from yoked.train.state import Owned, Replicated, TrainState

# What a checkpoint calls one, beside the moments of its parameter.
LATE_GRADIENT = "late_gradient"
LATE_HEAD_GRADIENT = f"{LATE_GRADIENT}/{HEAD}"


class LateGradients:
    """Those of one step. head: like the lm_head; matrices: like all of them, of which a rank has
    its own stacks; None: theirs do not wait.
    """

    def __init__(self, buffers: ParamBuffers, *, matrices: bool) -> None:
        self.matrices = torch.zeros_like(buffers.matrices) if matrices else None
        self.head = torch.zeros_like(buffers.head_grad)

    def register(self, state: TrainState, buckets: list[Bucket]) -> None:
        """All of them; matrices' are their owners'. buckets: of all ranks."""
        for number, bucket in enumerate(buckets if self.matrices is not None else ()):
            assert self.matrices is not None
            like = bucket.view(self.matrices)
            mine = like if bucket.owner == state.comm.rank else None
            state.register(f"{LATE_GRADIENT}/{number}", mine, Owned(bucket.owner), like)
        state.register(LATE_HEAD_GRADIENT, self.head, Replicated())

    def load(self, head: Mapping[str, Tensor], matrices: Iterable[Mapping[str, Tensor]]) -> None:
        """Take over the lm_head's, if a checkpoint has all that wait here; else it stays zeros.

        head, matrices: what is saved of each parameter. Raises RuntimeError where the lm_head's is
        of another size.
        """
        waiting = [head, *(matrices if self.matrices is not None else ())]
        if all(LATE_GRADIENT in each for each in waiting):
            self.head.copy_(head[LATE_GRADIENT].view(self.head.shape))

"""Summed gradients that the next step uses, where `--sync late` puts them off.

They are state: a checkpoint keeps them, and a run that goes on from it uses them first.

Shape legend: V padded vocabulary, C n_embd, M rows of the tables that a step can use at most, E sum
of the tables' widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.param_buffers import HEAD, Bucket, ParamBuffers
from yoked.train.state import Owned, Replicated, TrainState

# What a checkpoint calls them; of matrices their number follows.
LATE = "late_gradient"
LATE_HEAD = f"{LATE}/{HEAD}"
# By what a checkpoint has beside the lm_head's moments.
OF_ALL = {
    LATE: LATE_HEAD,
    "late_scalars": f"{LATE}/scalars",
    "late_rows": f"{LATE}/rows",
    "late_tables": f"{LATE}/tables",
}


@dataclass(frozen=True)
class ReplicatedGrads:
    """Gradients of what every rank updates, summed over ranks: lm_head (V, C), scalars as in their
    buffer, rows of the tables.
    """

    head: Tensor
    scalars: Tensor
    rows: RowGrads


class LateGradients:
    """Those of one step. matrices: like all of them, of which a rank has its own stacks.

    rows: (M,) int64, sorted, filled up with -1; tables: (M * E,), the first of them in use, as
    `RowGrads.flat` has them.
    """

    def __init__(self, buffers: ParamBuffers, tokens: int) -> None:
        """tokens: of a step, of all ranks."""
        vocab = len(buffers.head_grad)
        self._widths, self._vocab = buffers.table_widths, vocab
        most, device = min(vocab, tokens), buffers.model.tables_device
        self.matrices = torch.zeros_like(buffers.matrices)
        self.head = torch.zeros_like(buffers.head_grad)
        self.scalars = torch.zeros_like(buffers.scalar_grads)
        self.rows = torch.full((most,), -1, dtype=torch.int64, device=device)
        self.tables = torch.zeros(most * sum(self._widths.values()), device=device)

    def keep_rows(self, grads: RowGrads) -> None:
        """Take over the tables' gradients."""
        self.rows.fill_(-1)
        self.rows[: len(grads.rows)] = grads.rows
        self.tables[: len(grads.flat)] = grads.flat

    def row_grads(self) -> RowGrads:
        """The tables' gradients, as `keep_rows` was given them."""
        grads = RowGrads(self.rows[self.rows >= 0], self._widths, self._vocab)
        grads.flat.copy_(self.tables[: len(grads.flat)])
        return grads

    def register(self, state: TrainState, buckets: list[Bucket]) -> None:
        """All of them; matrices' are their owners'. buckets: of all ranks."""
        for number, bucket in enumerate(buckets):
            like = bucket.view(self.matrices)
            mine = like if bucket.owner == state.comm.rank else None
            state.register(f"{LATE}/{number}", mine, Owned(bucket.owner), like)
        tensors = (self.head, self.scalars, self.rows, self.tables)
        for name, tensor in zip(OF_ALL.values(), tensors, strict=True):
            state.register(name, tensor, Replicated())

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take over what a checkpoint has beside the lm_head's moments; nothing is zeros.

        Raises RuntimeError where it is of other sizes.
        """
        tensors = (self.head, self.scalars, self.rows, self.tables)
        for key, tensor in zip(OF_ALL, tensors, strict=True):
            if key in saved:
                tensor.copy_(saved[key].view(tensor.shape))

"""Gradients of embedding tables, only for the rows that a step uses.

Most parameters of a small model are in its tables (token and value embeddings), and a step of a
few thousand tokens uses a few hundred of their rows. A dense gradient would be zeroed, sent and
read in full for those few rows. All tables are indexed by the same ids, so one list of rows
serves them all.

Shape legend: U unique rows of a step, C width of a table, E sum of the tables' widths,
V padded vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.train.model.precision import widen


class RowGrads:
    """Gradients of one step: `rows` (U,) int64, sorted, and per table (U, C) in `tables`.

    row_index (V,) int32: where a vocabulary row's gradient is; -1: the step does not use it.
    """

    def __init__(self, rows: Tensor, widths: dict[str, int], vocab_size: int) -> None:
        self.rows = rows
        self.widths = widths
        self.row_index = torch.full((vocab_size,), -1, dtype=torch.int32, device=rows.device)
        self.row_index[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        # (U * E,): one allocation, so that all tables travel in one message.
        self.flat = torch.zeros(len(rows) * sum(widths.values()), device=rows.device)
        self.tables = split_tables(self.flat, len(rows), widths)
        self._arriving: tuple[str, Tensor, Callable[[], Tensor]] | None = None

    def add(self, table: str, ids: Tensor, grad: Tensor) -> None:
        """Add the gradient (..., C) of an embedding's output for ids (...)."""
        index = self.row_index[ids.reshape(-1)]  # for each id the place of its row among the U
        # In float32: a frequent token's row sums hundreds of terms.
        self.tables[table].index_add_(0, index, widen(grad.reshape(len(index), -1)))

    def add_arriving(self, table: str, rows: Tensor, arrived: Callable[[], Tensor]) -> None:
        """Add gradients (u, C) of rows (u,), each once, that are on their way from a device.

        arrived: waits for them. Until the next ones set out, or `settle`, nobody does: the device
        goes on meanwhile.
        """
        self.settle()
        self._arriving = table, rows, arrived

    def settle(self) -> None:
        """Wait for what is on its way."""
        if self._arriving is not None:
            (table, rows, arrived), self._arriving = self._arriving, None
            self.tables[table].index_add_(0, self.row_index[rows], arrived())

    def add_rows(self, rows: Tensor, flat: Tensor) -> None:
        """Add another rank's gradients: rows (u,) unique, flat (u * E,) laid out as `flat`."""
        index = self.row_index[rows]
        for table, part in split_tables(flat, len(rows), self.widths).items():
            self.tables[table].index_add_(0, index, part)


def split_tables(flat: Tensor, count: int, widths: dict[str, int]) -> dict[str, Tensor]:
    """Views (count, C) of a flat buffer (count * E,), one a table."""
    parts = torch.split(flat, [count * width for width in widths.values()])
    # Both sizes: view(count, -1) is refused for the count of 0 of a rank without tokens.
    return {
        name: part.view(count, width)
        for (name, width), part in zip(widths.items(), parts, strict=True)
    }


class _Embedding(torch.autograd.Function):
    """F.embedding whose gradient goes to RowGrads rather than to a dense `.grad`."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight_VC: Tensor, table: str, row_grads: RowGrads
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.row_grads = table, row_grads
        return F.embedding(ids, weight_VC)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.row_grads.add(ctx.table, ids, upstream[0])
        return None, None, None, None  # the gradient is in row_grads already


def embedding(ids: Tensor, weight_VC: Tensor, table: str, row_grads: RowGrads | None) -> Tensor:
    """Rows (..., C) of a table; their gradient goes to row_grads; None: to the weight's `.grad`."""
    if row_grads is None or not torch.is_grad_enabled():
        return F.embedding(ids, weight_VC)
    rows: Tensor = _Embedding.apply(ids, weight_VC, table, row_grads)  # type: ignore[no-untyped-call]
    return rows

"""Gradients of embedding tables, kept as the rows that a step touches.

Most parameters of a small model sit in its tables (token and value embeddings), and a step of
a few thousand tokens touches a few hundred of their rows. A dense gradient would be filled,
carried over the wire and read whole for those few. All tables are read with the same ids, so
one list of rows serves all.

Shape legend: U distinct rows of a step, E sum of the tables' widths.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.train.model.precision import widen


class RowGrads:
    """Row gradients of all tables for one step: `rows` (U,) int64 sorted, and per table (U, C)."""

    def __init__(self, rows: Tensor, widths: dict[str, int], vocab_size: int) -> None:
        self.rows = rows
        self.widths = widths
        self.row_index = torch.full((vocab_size,), -1, dtype=torch.int32, device=rows.device)
        self.row_index[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        # One allocation, so that all tables travel in one message.
        self.flat = torch.zeros(len(rows) * sum(widths.values()), device=rows.device)
        self.tables = split_tables(self.flat, len(rows), widths)

    @classmethod
    def for_ids(cls, ids: Tensor, widths: dict[str, int], vocab_size: int) -> RowGrads:
        """Zero gradients for the rows that occur in ids (any shape, int64)."""
        return cls(torch.unique(ids), widths, vocab_size)

    def add(self, table: str, ids: Tensor, gradient: Tensor) -> None:
        """Add gradient (..., C) of the looked-up ids (...)."""
        slots = self.row_index[ids.reshape(-1)]
        self.tables[table].index_add_(0, slots, widen(gradient.reshape(len(slots), -1)))

    def add_rows(self, rows: Tensor, flat: Tensor) -> None:
        """Add another rank's gradients: rows (u,) distinct, flat laid out as our own."""
        slots = self.row_index[rows]
        for table, part in split_tables(flat, len(rows), self.widths).items():
            self.tables[table].index_add_(0, slots, part)


def split_tables(flat: Tensor, count: int, widths: dict[str, int]) -> dict[str, Tensor]:
    """Views (count, C) of a flat buffer, one for each table."""
    parts = torch.split(flat, [count * width for width in widths.values()])
    # Both sizes are given: a rank without tokens has a count of 0.
    return {
        name: part.view(count, width)
        for (name, width), part in zip(widths.items(), parts, strict=True)
    }


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, table: str, row_grads: RowGrads) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.row_grads = table, row_grads
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.row_grads.add(ctx.table, ids, upstream[0])
        return None, None, None, None


def embedding(ids: Tensor, weight: Tensor, table: str, row_grads: RowGrads | None) -> Tensor:
    """Rows of a table; their gradient goes to `row_grads`, or to autograd where that is None."""
    if row_grads is None or not torch.is_grad_enabled():
        return F.embedding(ids, weight)
    out: Tensor = _Embedding.apply(ids, weight, table, row_grads)  # type: ignore[no-untyped-call]
    return out

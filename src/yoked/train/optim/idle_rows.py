"""Steps of embedding rows that no token used, taken when the rows are next read.

AdamW moves a row in every step: its momentum goes on, and its weight decays. A step of a few
thousand tokens uses some hundred of 32,768 rows, so nearly all that the optimizer read and wrote
was for the others. Their steps are counted instead, and taken one after the other while the row is
in the cache: when a forward pass reads it, when it has a gradient, or when its turn comes. The
arithmetic and its order are the same, and so are the bits.

Shape legend: V padded vocabulary, C width of a table, U rows that a step uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train import kernels
from yoked.train.model.row_grads import RowGrads

# Steps that a row may be behind: each step takes the steps of a part of all rows, so that a pause
# before an evaluation or a checkpoint is short.
MOST_BEHIND = 64


@dataclass(frozen=True)
class Table:
    """An embedding table and its moments, each (V, C) of one dtype. settings: of its group."""

    parameter: Tensor
    first: Tensor
    second: Tensor
    group: str

    @property
    def usable(self) -> bool:
        """Whether the compiled pass can work on it."""
        return kernels.usable(self.parameter, self.first, self.second)


class IdleRows:
    """AdamW of embedding tables that are indexed by the same ids, in host memory."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        rows = len(next(iter(tables.values())).parameter)
        self._behind = torch.zeros(rows, dtype=torch.int32)  # steps, by row
        # (steps, 6) by group: what the last steps multiplied with, in a ring.
        groups = {table.group for table in tables.values()}
        self._scalars = {group: torch.zeros(MOST_BEHIND, 6) for group in groups}
        self._newest = 0
        self._turns = torch.split(torch.arange(rows), -(-rows // MOST_BEHIND))

    def step(self, scalars: Mapping[str, Tensor], gradients: RowGrads) -> None:
        """One step of all rows: those with a gradient take it now.

        scalars: (6,) by group, from `adamw.coefficients`.
        """
        self._newest = (self._newest + 1) % MOST_BEHIND
        for group, ring in self._scalars.items():
            ring[self._newest] = scalars[group]
        self._behind += 1
        self._catch_up(gradients.rows, gradients.tables)
        self._catch_up(self._turns[self._newest % len(self._turns)])

    def catch_up(self, rows: Iterable[Tensor]) -> None:
        """Until these rows (U,) int64, perhaps several lists of them, are as they must be read."""
        for each in rows:
            self._catch_up(each)

    def catch_up_all(self) -> None:
        """The same for all rows."""
        self.catch_up(self._turns)

    def _catch_up(self, rows: Tensor, gradients: Mapping[str, Tensor] | None = None) -> None:
        """gradients: (U, C) by table, of the newest step."""
        if not len(rows):
            return
        for name, table in self._tables.items():
            kernels.adamw_idle_rows(
                table.parameter,
                None if gradients is None else gradients[name],
                table.first,
                table.second,
                rows,
                self._behind,
                self._scalars[table.group],
                self._newest,
            )
        self._behind[rows] = 0

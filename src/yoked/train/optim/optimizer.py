"""MuonAdamW: one optimizer of two rules over the flat buffers of a `Layout`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from yoked.errors import CheckpointError
from yoked.train import kernels
from yoked.train.model.linear import MatmulBackend
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.adamw import SKIPPED, adamw_update, coefficients
from yoked.train.optim.layout import HEAD, Layout, Stack
from yoked.train.optim.muon import MuonStep, muon_update, reduced_dimension
from yoked.train.optim.schedule import Schedule

OptimizerState = dict[str, dict[str, dict[str, Any]]]


class MuonAdamW:
    """AdamW for tables, lm_head and scalars on every rank; Muon for the matrices that it owns.

    Of the lm_head AdamW updates the layout's `head_rows`.

    After `step_muon`, a rank's own matrices are new and the others' are not: they come from their
    owners (`yoked.train.sync`).
    """

    def __init__(
        self,
        layout: Layout,
        schedule: Schedule,
        rank: int,
        *,
        backend: MatmulBackend = "default",
        in_bfloat16: bool = False,
    ) -> None:
        self.layout, self.schedule, self.rank = layout, schedule, rank
        self.backend, self.in_bfloat16 = backend, in_bfloat16
        self.updates, self._began = 0, False
        self.first = {n: torch.zeros_like(layout.parameters[n].data) for n in self.adamw_names}
        self.second = {n: torch.zeros_like(layout.parameters[n].data) for n in self.adamw_names}
        self.owned = [stack for stack in layout.stacks if stack.owner == rank]
        self.momentum = {
            stack: torch.zeros_like(stack.view(layout.matrices)) for stack in self.owned
        }
        self.second_moment = {stack: self.empty_second_moment(stack) for stack in self.owned}

    @property
    def adamw_names(self) -> list[str]:
        """Parameters that AdamW updates, on every rank."""
        return [name for group in self.layout.groups.adamw for name in group.names]

    def begin_adamw(self, step: int, used_rows: Tensor) -> None:
        """Update the rows of tables that no rank used: their gradient is known to be zero.

        They are nearly all rows, and this need not wait for any gradient. used_rows: (U,) int64,
        of all ranks; step counts from 0. `step_adamw` follows.
        """
        self.updates += 1
        some = next(iter(self.layout.table_widths))
        self._began = kernels.usable(self.layout.parameters[some].data)
        if self._began:
            slot = torch.full((len(self.layout.parameters[some]),), -1, dtype=torch.int32)
            slot[used_rows] = SKIPPED
            nothing = torch.empty(0)
            for name, scalars in self._adamw_scalars(step):
                if name in self.layout.table_widths:
                    self._update(name, nothing, scalars, slot)

    def step_adamw(self, step: int, rows: RowGrads) -> None:
        """Update all else but the matrices; `rows` has the tables' gradients."""
        slot = (
            rows.row_index.clone().masked_fill_(rows.row_index < 0, SKIPPED)
            if self._began
            else rows.row_index
        )
        for name, scalars in self._adamw_scalars(step):
            table = rows.tables.get(name)
            if name == HEAD:
                self._update_head(scalars)
            elif table is None:
                self._update(name, self.layout.gradient(name), scalars, None)
            else:
                self._update(name, table, scalars, slot)

    def _adamw_scalars(self, step: int) -> Iterator[tuple[str, Tensor]]:
        lr_factor = self.schedule.learning_rate(step)
        for group in self.layout.groups.adamw:
            lr = group.lr * lr_factor
            scalars = coefficients(self.updates, lr, group.betas, group.weight_decay)
            for name in group.names:
                yield name, scalars

    @torch.no_grad()
    def _update(self, name: str, gradient: Tensor, scalars: Tensor, slot: Tensor | None) -> None:
        parameter = self.layout.parameters[name].data
        adamw_update(parameter, gradient, self.first[name], self.second[name], scalars, slot)

    @torch.no_grad()
    def _update_head(self, scalars: Tensor) -> None:
        rows = self.layout.head_rows
        first, second = self.head_moments
        adamw_update(
            self.layout.parameters[HEAD].data[rows],
            self.layout.head_grad[rows],
            first[rows],
            second[rows],
            scalars,
        )

    @property
    def head_moments(self) -> tuple[Tensor, Tensor]:
        """AdamW's of the lm_head, (V, C) each."""
        return self.first[HEAD], self.second[HEAD]

    def step_muon(self, step: int) -> None:
        """Update this rank's own matrices."""
        for stack in self.owned:
            self.step_stack(step, stack)

    @torch.no_grad()
    def step_stack(self, step: int, stack: Stack) -> None:
        """Update one stack of this rank's own."""
        lr_factor = self.schedule.learning_rate(step)
        group = next(g for g in self.layout.groups.muon if g.shape == stack.shape)
        muon_update(
            stack.view(self.layout.matrices),
            stack.view(self.layout.matrix_grads),
            self.momentum[stack],
            self.second_moment[stack],
            MuonStep(
                lr=group.lr * lr_factor,
                momentum=self.schedule.muon_momentum(step),
                weight_decay=group.weight_decay * self.schedule.weight_decay(step),
                backend=self.backend,
                in_bfloat16=self.in_bfloat16,
            ),
        )

    def adamw_state(self) -> dict[str, dict[str, Any]]:
        """AdamW's state by parameter name; every rank has it whole."""
        return {
            name: {
                "step": self.updates,
                "exp_avg": self.first[name],
                "exp_avg_sq": self.second[name],
            }
            for name in self.adamw_names
        }

    def muon_state(self) -> dict[str, dict[str, Tensor]]:
        """Muon's state by matrix name, of this rank's matrices."""
        return {
            name: {
                "momentum_buffer": self.momentum[stack][index],
                "second_momentum_buffer": self.second_moment[stack][index],
            }
            for stack in self.owned
            for index, name in enumerate(stack.names)
        }

    def load(self, state: OptimizerState) -> None:
        """Take over a whole state (of all ranks), as saved at any number of ranks."""
        try:
            for name in self.adamw_names:
                entry = state["adamw"][name]
                self.first[name].copy_(entry["exp_avg"])
                self.second[name].copy_(entry["exp_avg_sq"])
                self.updates = int(entry["step"])
            for name, mine in self.muon_state().items():
                for key, tensor in mine.items():
                    tensor.copy_(state["muon"][name][key])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the optimizer state does not fit the model: {error}",
                fix="start from the weights alone with --from FOLDER",
            ) from error

    def empty_second_moment(self, stack: Stack) -> Tensor:
        """Zeros (K, R, 1) or (K, 1, C), as NorMuon reduces a matrix of this shape."""
        rows, columns = stack.shape
        reduced = (rows, 1) if reduced_dimension(rows, columns) == -1 else (1, columns)
        return self.layout.matrices.new_zeros(len(stack.names), *reduced)

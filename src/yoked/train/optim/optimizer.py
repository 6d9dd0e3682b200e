"""MuonAdamW: one optimizer of two rules over the flat buffers of a `ParamBuffers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from yoked.errors import CheckpointError
from yoked.train.model.linear import MatmulBackend
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.adamw import adamw_update, coefficients
from yoked.train.optim.groups import MUON, GroupSettings, ParameterGroup
from yoked.train.optim.idle_rows import IdleRows, Table
from yoked.train.optim.late_gradients import LATE_GRADIENT, LATE_HEAD_GRADIENT, LateGradients
from yoked.train.optim.muon import MuonStep, muon_update, reduced_dimension
from yoked.train.optim.param_buffers import HEAD, Bucket, ParamBuffers, ReplicatedGrads, Update
from yoked.train.optim.schedule import Schedule
from yoked.train.state import Owned, Replicated, TrainState

OptimizerState = dict[str, dict[str, dict[str, Any]]]


class MuonAdamW:
    """AdamW on every rank, of the lm_head for its `own_vocab`; Muon for the matrices that it owns.

    After `step_bucket`, a rank's own matrices are new and the others' are not: they come from their
    owners (`yoked.train.sync`).
    """

    def __init__(
        self,
        buffers: ParamBuffers,
        settings: GroupSettings,
        schedule: Schedule,
        rank: int,
        *,
        backend: MatmulBackend = "default",
        in_bfloat16: bool = False,
    ) -> None:
        self.buffers, self.settings, self.schedule = buffers, settings, schedule
        self.backend, self.in_bfloat16 = backend, in_bfloat16
        self.num_updates = 0  # of AdamW, for its bias correction
        self.late: LateGradients | None = None
        # Moments have their parameter's dtype, as nanochat's: a table's may be bfloat16.
        updated = {name: buffers.parameters[name].data for name in buffers.adamw_names}
        self.exp_avg = {name: torch.zeros_like(values) for name, values in updated.items()}
        self.exp_avg_sq = {name: torch.zeros_like(values) for name, values in updated.items()}
        self._idle_rows = self._put_off()
        self.owned = [bucket for bucket in buffers.buckets if bucket.owner == rank]
        self.momentum = {
            bucket: torch.zeros_like(bucket.view(buffers.matrices)) for bucket in self.owned
        }
        self.second_moment = {bucket: self.empty_second_moment(bucket) for bucket in self.owned}

    def _put_off(self) -> IdleRows | None:
        """Where steps of rows without a gradient may wait; None: where the compiled pass cannot."""
        tables = {
            name: Table(
                self.buffers.parameters[name].data,
                self.exp_avg[name],
                self.exp_avg_sq[name],
                group.name,
            )
            for group in self.buffers.adamw_groups
            for name in group.names
            if name in self.buffers.table_widths
        }
        return IdleRows(tables) if all(table.usable for table in tables.values()) else None

    def catch_up(self, row_grads: Iterable[RowGrads]) -> None:
        """Before rows of the tables are read: those for which gradients are to come."""
        if self._idle_rows is not None:
            self._idle_rows.catch_up(each.rows for each in row_grads)

    def catch_up_all(self) -> None:
        """Before anybody else reads the tables or their moments."""
        if self._idle_rows is not None:
            self._idle_rows.catch_up_all()

    @torch.no_grad()
    def step_adamw(self, step: int, grads: ReplicatedGrads) -> None:
        """Update tables and scalars; step counts from 0."""
        row_grads = grads.rows
        self.num_updates += 1
        by_group: dict[str, Tensor] = {}
        for group in self.buffers.adamw_groups:
            if HEAD in group.names:
                continue
            scalars = self._coefficients(group, self.num_updates, step)
            by_group[group.name] = scalars
            for name in group.names:
                if self._idle_rows is not None and name in row_grads.tables:
                    continue
                table = row_grads.tables.get(name)  # (U, C); None: its gradient is dense
                adamw_update(
                    self.buffers.parameters[name].data,
                    self.buffers.scalar(name, grads.scalars) if table is None else table,
                    self.exp_avg[name],
                    self.exp_avg_sq[name],
                    scalars,
                    None if table is None else row_grads.row_index,
                )
        if self._idle_rows is not None:
            self._idle_rows.step(by_group, row_grads)

    @torch.no_grad()
    def step_head(self, step: int, gradient: Tensor) -> None:
        """Update this rank's rows of the lm_head, before `step_adamw`, which counts the step.

        gradient: (V, C), summed over ranks.
        """
        (group,) = (each for each in self.buffers.adamw_groups if HEAD in each.names)
        rows = self.buffers.own_vocab
        adamw_update(
            self.buffers.parameters[HEAD].data[rows],
            gradient[rows],
            self.exp_avg[HEAD][rows],
            self.exp_avg_sq[HEAD][rows],
            self._coefficients(group, self.num_updates + 1, step),
        )

    def _coefficients(self, group: ParameterGroup, updates: int, step: int) -> Tensor:
        """Of a group, on its device. Once a group: every copy to a GPU waits for it."""
        settings = self.settings[group.name]
        lr = settings["lr"] * self.schedule.learning_rate(step)
        found = coefficients(updates, lr, settings["betas"], settings["weight_decay"])
        return found.to(self.buffers.parameters[group.names[0]].device)

    @torch.no_grad()
    def step_bucket(self, step: int, due: Update) -> None:
        """Update one stack of this rank's own."""
        lr_factor = self.schedule.learning_rate(step)
        settings = self.settings[MUON]
        muon_update(
            due.matrices,
            due.gradients,
            self.momentum[due.bucket],
            self.second_moment[due.bucket],
            MuonStep(
                lr=settings["lr"] * lr_factor,
                momentum=self.schedule.muon_momentum(step),
                weight_decay=settings["weight_decay"] * self.schedule.weight_decay(step),
                backend=self.backend,
                in_bfloat16=self.in_bfloat16,
            ),
        )

    def put_off(self, *, matrices: bool) -> LateGradients:
        """Make room for gradients that are used a step late. matrices: theirs too."""
        self.late = LateGradients(self.buffers, matrices=matrices)
        return self.late

    def register(self, state: TrainState) -> None:
        """All that it updates: parameters, AdamW's moments, and Muon's of the owners; and late
        gradients.
        """
        for name, parameter in self.buffers.parameters.items():
            state.register(name, parameter.data, Replicated())
        for name in self.buffers.adamw_names:
            state.register(f"exp_avg/{name}", self.exp_avg[name], Replicated())
            state.register(f"exp_avg_sq/{name}", self.exp_avg_sq[name], Replicated())
        for number, bucket in enumerate(self.buffers.buckets):
            owned, like = Owned(bucket.owner), bucket.view(self.buffers.matrices)
            state.register(f"momentum/{number}", self.momentum.get(bucket), owned, like)
            second, like = self.second_moment.get(bucket), self.empty_second_moment(bucket)
            state.register(f"second_momentum/{number}", second, owned, like)
        if self.late is not None:
            self.late.register(state, self.buffers.buckets)

    def state_dict(self, whole: Mapping[str, Tensor]) -> OptimizerState:
        """By parameter name, as it is saved. whole: all tensors of `register`."""
        adamw = {
            name: {
                "step": self.num_updates,
                "exp_avg": whole[f"exp_avg/{name}"],
                "exp_avg_sq": whole[f"exp_avg_sq/{name}"],
            }
            for name in self.buffers.adamw_names
        }
        if LATE_HEAD_GRADIENT in whole:
            adamw[HEAD][LATE_GRADIENT] = whole[LATE_HEAD_GRADIENT]
        muon = {
            name: {
                "momentum_buffer": whole[f"momentum/{number}"][index],
                "second_momentum_buffer": whole[f"second_momentum/{number}"][index],
                **_late(whole, number, index),
            }
            for number, bucket in enumerate(self.buffers.buckets)
            for index, name in enumerate(bucket.names)
        }
        return {"adamw": adamw, "muon": muon, "settings": self.settings}

    def load(self, state: OptimizerState) -> dict[str, Tensor]:
        """Take over a whole state, as saved at any number of ranks. Raises CheckpointError.

        Returns Muon's state of all owners, named as in `register`: the others' is to be sent there.
        """
        muon: dict[str, Tensor] = {}
        try:
            for name in self.buffers.adamw_names:
                entry = state["adamw"][name]
                self.exp_avg[name].copy_(entry["exp_avg"])
                self.exp_avg_sq[name].copy_(entry["exp_avg_sq"])
                self.num_updates = int(entry["step"])
            if self.late is not None:
                self.late.load(state["adamw"][HEAD], state["muon"].values())
            for number, bucket in enumerate(self.buffers.buckets):
                entries = [state["muon"][name] for name in bucket.names]
                for name, key, like, mine in (
                    ("momentum", "momentum_buffer", bucket.view(self.buffers.matrices),
                     self.momentum),
                    ("second_momentum", "second_momentum_buffer", self.empty_second_moment(bucket),
                     self.second_moment),
                ):  # fmt: skip
                    # Expanded, a tensor of another shape is an error.
                    read = torch.stack([each[key] for each in entries]).expand_as(like)
                    muon[f"{name}/{number}"] = read
                    if bucket in mine:
                        mine[bucket].copy_(read)
                # A run that had none so far begins with none.
                none = torch.zeros(bucket.shape)
                muon[f"{LATE_GRADIENT}/{number}"] = torch.stack(
                    [e.get(LATE_GRADIENT, none) for e in entries]
                )
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the optimizer state does not fit the model: {error}",
                fix="start from the weights alone with --from FOLDER",
            ) from error
        return muon

    def empty_second_moment(self, bucket: Bucket) -> Tensor:
        """Zeros (K, R, 1) or (K, 1, C), as NorMuon reduces a matrix of this shape."""
        rows, columns = bucket.shape
        reduced = (rows, 1) if reduced_dimension(rows, columns) == -1 else (1, columns)
        return self.buffers.matrices.new_zeros(len(bucket.names), *reduced)


def _late(whole: Mapping[str, Tensor], number: int, index: int) -> dict[str, Tensor]:
    found = whole.get(f"{LATE_GRADIENT}/{number}")
    return {} if found is None else {LATE_GRADIENT: found[index]}

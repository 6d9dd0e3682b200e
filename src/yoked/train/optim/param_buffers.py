"""Where parameters and gradients lie in memory: flat buffers that travel without copies.

Matrices (Muon's) have one owner among the ranks: its update contains matrix products, which
unlike CPUs round differently, so one rank computes it and all take over the same bytes. They
lie in one flat buffer ordered by owner, then by shape: an owner's matrices of one shape are one
stack and, once updated, one message. The lm_head and the scalars have buffers of their
own; embedding tables have row gradients instead (`yoked.train.model.row_grads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.costmodel.matrix_owners import ADAMW_FLOPS, owner_speeds
from yoked.costmodel.model_shape import matrix_muon_flops
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import Groups

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Bucket:
    """K matrices of one shape with one owner, consecutive in the flat buffer."""

    owner: int
    names: tuple[str, ...]
    shape: tuple[int, int]
    offset: int

    @property
    def numel(self) -> int:
        """Numbers in all K matrices."""
        return len(self.names) * self.shape[0] * self.shape[1]

    def view(self, flat: Tensor) -> Tensor:
        """(K, R, C) of the flat buffer."""
        return flat[self.offset : self.offset + self.numel].view(len(self.names), *self.shape)


def assign_owners(
    groups: Groups, speeds: Sequence[float], adamw_numbers: int = 0
) -> dict[str, int]:
    """An owner for each matrix: the rank that would be done first, largest matrices first.

    speeds: relative, by rank; the slow own nothing (`owner_speeds`). adamw_numbers: that every rank
    updates besides. The same on all ranks.
    """
    speeds = owner_speeds(speeds)
    names = [
        (-matrix_muon_flops(*group.shape), name, group.shape)
        for group in groups.muon
        for name in group.names
    ]
    busy = [float(ADAMW_FLOPS * adamw_numbers)] * len(speeds)  # FLOPs, by rank
    owners: dict[str, int] = {}
    able = [rank for rank, speed in enumerate(speeds) if speed > 0]
    for _, name, shape in sorted(names):  # matrices of one size by name, alike on all ranks
        owner = min(able, key=lambda rank: (busy[rank] + matrix_muon_flops(*shape)) / speeds[rank])
        busy[owner] += matrix_muon_flops(*shape)
        owners[name] = owner
    return owners


class ParamBuffers:
    """The flat buffers of one model; after construction its parameters are views of them."""

    def __init__(self, model: GPT, groups: Groups, speeds: Sequence[float]) -> None:
        self.model = model
        self.groups = groups
        self.parameters = dict(model.named_parameters())
        numbers = sum(self.parameters[name].numel() for each in groups.adamw for name in each.names)
        self.owners = assign_owners(groups, speeds, numbers)
        self.buckets = self._bucket()
        device = model.device
        total = sum(bucket.numel for bucket in self.buckets)
        self.matrices = torch.empty(total, device=device)
        self.matrix_grads = torch.zeros(total, device=device)
        self.head_grad = torch.zeros_like(self.parameters[HEAD].data)
        # Rows of the lm_head that this rank updates: all, or its part of the vocabulary.
        self.own_vocab = slice(0, len(self.head_grad))
        self.scalar_names = [
            name for group in groups.adamw for name in group.names if self._is_scalar(name)
        ]
        sizes = [self.parameters[name].numel() for name in self.scalar_names]
        self.scalar_grads = torch.zeros(sum(sizes), device=device)
        self._attach_matrices()
        self._attach_scalars(sizes)
        self.table_widths = {name: table.weight.size(1) for name, table in model.tables()}

    def _is_scalar(self, name: str) -> bool:
        return name != HEAD and name not in dict(self.model.tables())

    def _bucket(self) -> list[Bucket]:
        buckets: list[Bucket] = []
        offset = 0
        for owner in sorted(set(self.owners.values())):
            for group in self.groups.muon:
                names = tuple(name for name in group.names if self.owners[name] == owner)
                if names:
                    buckets.append(Bucket(owner, names, group.shape, offset))
                    offset += buckets[-1].numel
        return buckets

    def _attach_matrices(self) -> None:
        for bucket in self.buckets:
            values, grads = bucket.view(self.matrices), bucket.view(self.matrix_grads)
            for index, name in enumerate(bucket.names):
                parameter = self.parameters[name]
                values[index].copy_(parameter.data)
                parameter.data = values[index]  # a view: Muon and messages take the whole bucket
                parameter.grad = grads[index]  # backward adds to a gradient that is there, in place

    def _attach_scalars(self, sizes: list[int]) -> None:
        parts = torch.split(self.scalar_grads, sizes)
        for name, part in zip(self.scalar_names, parts, strict=True):
            parameter = self.parameters[name]
            parameter.grad = part.view_as(parameter)

    def zero_grad(self) -> None:
        """Forget the last step's gradients; the tables' go with their RowGrads."""
        # Vocab-parallel, a rank writes only its own rows of the lm_head's gradient.
        for buffer in (self.head_grad[self.own_vocab], self.matrix_grads, self.scalar_grads):
            buffer.zero_()

    def gradient(self, name: str) -> Tensor:
        """The dense gradient of a parameter other than a table, fp32."""
        if name == HEAD:
            return self.head_grad
        gradient = self.parameters[name].grad
        assert gradient is not None, name
        return gradient

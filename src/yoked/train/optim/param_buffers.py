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
from itertools import pairwise

import torch
from torch import Tensor

from yoked.costmodel.matrix_owners import ADAMW_FLOPS, owner_speeds
from yoked.costmodel.model_shape import matrix_muon_flops
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.groups import MUON, ParameterGroup, Shapes, parameter_groups

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


@dataclass(frozen=True)
class Update:
    """A bucket that is due. matrices: (K, R, C), to be changed in place; gradients: like them,
    summed over ranks.
    """

    bucket: Bucket
    matrices: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class ReplicatedGrads:
    """Gradients of what every rank updates, but for the lm_head, summed over ranks. scalars: as in
    their buffer; rows: of the tables.
    """

    scalars: Tensor
    rows: RowGrads


def assign_owners(
    matrices: Shapes, speeds: Sequence[float], adamw_numbers: int = 0
) -> dict[str, int]:
    """An owner for each matrix: the rank that would be done first, largest matrices first.

    matrices: their shapes, by name. speeds: relative, by rank; the slow own nothing
    (`owner_speeds`). adamw_numbers: that every rank updates besides. The same on all ranks.
    """
    speeds = owner_speeds(speeds)
    flops = {name: matrix_muon_flops(*shape) for name, shape in matrices.items()}
    busy = [float(ADAMW_FLOPS * adamw_numbers)] * len(speeds)  # FLOPs, by rank
    owners: dict[str, int] = {}
    able = [rank for rank, speed in enumerate(speeds) if speed > 0]
    # Matrices of one size by name, alike on all ranks.
    for name in sorted(flops, key=lambda name: (-flops[name], name)):
        owner = min(able, key=lambda rank: (busy[rank] + flops[name]) / speeds[rank])
        busy[owner] += flops[name]
        owners[name] = owner
    return owners


class ParamBuffers:
    """The flat buffers of one model; after construction its parameters are views of them.

    speeds: relative, by rank, as `assign_owners` has them.
    """

    def __init__(self, model: GPT, speeds: Sequence[float]) -> None:
        self.model = model
        self.parameters = dict(model.named_parameters())
        shapes = {name: tuple(each.shape) for name, each in self.parameters.items()}
        groups = parameter_groups(shapes)
        self.adamw_groups = [group for group in groups if group.kind != MUON]
        muon_groups = [group for group in groups if group.kind == MUON]
        self.adamw_names = [name for group in self.adamw_groups for name in group.names]
        numbers = sum(self.parameters[name].numel() for name in self.adamw_names)
        matrices = {name: shapes[name] for group in muon_groups for name in group.names}
        self.owners = assign_owners(matrices, speeds, numbers)
        self.buckets = self._bucket(muon_groups)
        device = model.device
        total = sum(bucket.numel for bucket in self.buckets)
        self.matrices = torch.empty(total, device=device)
        self.matrix_grads = torch.zeros(total, device=device)
        self.head_grad = torch.zeros_like(self.parameters[HEAD].data)
        # Rows of the lm_head that this rank updates: all, or its part of the vocabulary.
        self.own_vocab = slice(0, len(self.head_grad))
        self.scalar_names = [name for name in self.adamw_names if self._is_scalar(name)]
        sizes = [self.parameters[name].numel() for name in self.scalar_names]
        self.scalar_grads = torch.zeros(sum(sizes), device=device)
        self._attach_matrices()
        self._attach_scalars(sizes)
        self.table_widths = {name: table.weight.size(1) for name, table in model.tables()}

    def _is_scalar(self, name: str) -> bool:
        return name != HEAD and name not in dict(self.model.tables())

    def _bucket(self, muon_groups: Sequence[ParameterGroup]) -> list[Bucket]:
        buckets: list[Bucket] = []
        offset = 0
        for owner in sorted(set(self.owners.values())):
            for group in muon_groups:
                names = tuple(name for name in group.names if self.owners[name] == owner)
                if names:
                    rows, columns = self.parameters[names[0]].shape
                    buckets.append(Bucket(owner, names, (rows, columns), offset))
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
        edges = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
        parts = [slice(*ends) for ends in pairwise(edges)]
        self._scalar_parts = dict(zip(self.scalar_names, parts, strict=True))
        for name in self.scalar_names:
            self.parameters[name].grad = self.scalar(name, self.scalar_grads)

    def zero_grad(self) -> None:
        """Forget the last step's gradients; the tables' go with their RowGrads."""
        # Vocab-parallel, a rank writes only its own rows of the lm_head's gradient.
        for buffer in (self.head_grad[self.own_vocab], self.matrix_grads, self.scalar_grads):
            buffer.zero_()

    def update_of(self, bucket: Bucket) -> Update:
        """With the gradients of this step, where the matrices are."""
        return Update(bucket, bucket.view(self.matrices), bucket.view(self.matrix_grads))

    def scalar(self, name: str, flat: Tensor) -> Tensor:
        """A scalar parameter's part of a buffer like `scalar_grads`."""
        return flat[self._scalar_parts[name]].view_as(self.parameters[name])

    def gradient(self, name: str) -> Tensor:
        """The dense gradient of a parameter other than a table, fp32."""
        if name == HEAD:
            return self.head_grad
        gradient = self.parameters[name].grad
        assert gradient is not None, name
        return gradient

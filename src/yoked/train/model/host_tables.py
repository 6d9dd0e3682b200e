"""Embedding tables that stay in host memory while a GPU trains: a micro-batch's rows cross the bus.

A table, its two moments and its gradients are most of a small model's bytes, and a micro-batch uses
a few thousand of their rows. So these rows go to the device, and the sums of their gradients come
back to where AdamW updates the tables. In a step of one micro-batch the bits are those of tables on
the device; with more, each micro-batch's sum is added as a whole.

Shape legend: B rows of tokens, T tokens a row, u distinct rows of a micro-batch, C width of a
table, V padded vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.train.device import staging_for, to_device, to_host
from yoked.train.model.precision import widen
from yoked.train.model.row_grads import RowGrads


class HostLookup:
    """One micro-batch's embeddings. rows: (u,) int64, sorted, in host memory; places: (B, T) int64,
    on the device: where among these the row of each token is.
    """

    def __init__(self, ids_BT: Tensor, device: torch.device, row_grads: RowGrads | None) -> None:
        """ids_BT: where they are on a device, they are waited for. row_grads: in host memory."""
        self.rows, places = distinct(ids_BT.cpu())
        self.device, self.row_grads = device, row_grads
        self.places = to_device(
            staging_for(places.shape, places.dtype, device).copy_(places), device
        )

    def embedding(self, weight_VC: Tensor, table: str) -> Tensor:
        """Rows (B, T, C) of a table, on the device; their gradient goes to `row_grads`.

        Traffic: u * C numbers to the device, and as many float32 back.
        """
        if not torch.is_grad_enabled():
            return self.fetch(weight_VC)
        assert self.row_grads is not None, f"{table} in host memory has no gradient of its own"
        rows: Tensor = _HostEmbedding.apply(weight_VC, table, self)  # type: ignore[no-untyped-call]
        return rows

    def fetch(self, weight_VC: Tensor) -> Tensor:
        """(B, T, C)."""
        sent = staging_for((len(self.rows), weight_VC.size(1)), weight_VC.dtype, self.device)
        torch.index_select(weight_VC.detach(), 0, self.rows, out=sent)
        return F.embedding(self.places, to_device(sent, self.device))

    def add(self, table: str, grad_BTC: Tensor) -> None:
        """Add up the gradient of an embedding's output on the device, and send the sums (u, C)."""
        assert self.row_grads is not None, table
        # In float32: a frequent token's row sums hundreds of terms.
        grad = widen(grad_BTC.reshape(self.places.numel(), -1))
        sums = grad.new_zeros(len(self.rows), grad.size(1))
        sums.index_add_(0, self.places.flatten(), grad)
        self.row_grads.add_arriving(table, self.rows, to_host(sums))


def distinct(ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids (u,), sorted, and the place (B, T) of each token's among them."""
    rows, places = torch.unique(ids_BT, return_inverse=True)
    return rows, places


class _HostEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, table: str, lookup: HostLookup) -> Tensor:
        ctx.table, ctx.lookup = table, lookup
        return lookup.fetch(weight_VC)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None]:
        ctx.lookup.add(ctx.table, upstream[0])
        return None, None, None  # the gradient is on its way to the host

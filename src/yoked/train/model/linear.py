"""Matrix products, and which library computes them on this host.

PyTorch's CPU build carries two: MKL (its default in float32) and oneDNN. MKL treats some AMD
CPUs as lesser ones, so that oneDNN is up to 2.4 times faster there; elsewhere MKL leads.
`yoked.train.choose` measures them on the model's own shapes.

Shape legend: N rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Library = Literal["default", "onednn"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@dataclass(frozen=True)
class Products:
    """The library for each of a linear layer's three products."""

    forward: Library = "default"
    grad_input: Library = "default"
    grad_weight: Library = "default"

    @classmethod
    def all(cls, library: Library) -> Products:
        """One library for all three."""
        return cls(library, library, library)

    def __str__(self) -> str:
        names = (self.forward, self.grad_input, self.grad_weight)
        return names[0] if len(set(names)) == 1 else "/".join(names)


def onednn_available() -> bool:
    """Whether oneDNN's own product can be called for float32 on the CPU."""
    here: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return here and _onednn_linear is not None


def multiply(a: Tensor, b: Tensor, library: Library) -> Tensor:
    """a (N, I) times the transpose of b (O, I); strides are free, transposed views included."""
    if library == "onednn":
        product: Tensor = _onednn_linear(a, b, None, "none", [], "")
        return product
    return torch.mm(a, b.t())


def multiply_add(out: Tensor, a: Tensor, b: Tensor, library: Library) -> None:
    """out (N, O) += a (N, I) times the transpose of b (O, I), in place; out may be wider."""
    if library == "default" and out.dtype == a.dtype:
        out.addmm_(a, b.t())
    else:
        out += multiply(a, b, library)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, products: Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products
        flat = x.reshape(-1, x.size(-1))
        return multiply(flat, weight, products.forward).view(*x.shape[:-1], weight.size(0))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy = upstream[0].reshape(-1, weight.size(0))
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = multiply(dy, weight.t(), ctx.products.grad_input).view(x.shape)
        if ctx.needs_input_grad[1]:
            flat = x.reshape(-1, x.size(-1))
            dweight = multiply(dy.t(), flat.t(), ctx.products.grad_weight)
        return dx, dweight, None


def linear(x: Tensor, weight: Tensor, products: Products) -> Tensor:
    """x (..., I) through weight (O, I), with the libraries that were chosen for this host."""
    if products == Products() or x.device.type != "cpu":
        return F.linear(x, weight)
    out: Tensor = _Linear.apply(x, weight, products)  # type: ignore[no-untyped-call]
    return out

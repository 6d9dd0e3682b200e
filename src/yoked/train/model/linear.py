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

MatmulBackend = Literal["default", "onednn"]
MATMUL_BACKENDS: tuple[MatmulBackend, ...] = get_args(MatmulBackend)
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@dataclass(frozen=True)
class MatmulBackends:
    """The library for each of a linear layer's three products."""

    forward: MatmulBackend = "default"
    grad_input: MatmulBackend = "default"
    grad_weight: MatmulBackend = "default"

    @classmethod
    def all(cls, backend: MatmulBackend) -> MatmulBackends:
        """One library for all three."""
        return cls(backend, backend, backend)

    def __str__(self) -> str:
        names = (self.forward, self.grad_input, self.grad_weight)
        return names[0] if len(set(names)) == 1 else "/".join(names)


def onednn_available() -> bool:
    """Whether oneDNN's own product can be called for float32 on the CPU."""
    here: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return here and _onednn_linear is not None


def mm_nt(a: Tensor, b: Tensor, backend: MatmulBackend) -> Tensor:
    """a (N, I) times the transpose of b (O, I); strides are free, transposed views included."""
    if backend == "onednn":
        product: Tensor = _onednn_linear(a, b, None, "none", [], "")
        return product
    return torch.mm(a, b.t())


def addmm_nt_(out: Tensor, a: Tensor, b: Tensor, backend: MatmulBackend) -> None:
    """out (N, O) += a (N, I) times the transpose of b (O, I), in place; out may be wider."""
    if backend == "default" and out.dtype == a.dtype:
        out.addmm_(a, b.t())
    else:
        out += mm_nt(a, b, backend)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, backends: MatmulBackends) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.backends = backends
        flat = x.reshape(-1, x.size(-1))
        return mm_nt(flat, weight, backends.forward).view(*x.shape[:-1], weight.size(0))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy = upstream[0].reshape(-1, weight.size(0))
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = mm_nt(dy, weight.t(), ctx.backends.grad_input).view(x.shape)
        if ctx.needs_input_grad[1]:
            flat = x.reshape(-1, x.size(-1))
            dweight = mm_nt(dy.t(), flat.t(), ctx.backends.grad_weight)
        return dx, dweight, None


def linear(x: Tensor, weight: Tensor, backends: MatmulBackends) -> Tensor:
    """x (..., I) through weight (O, I), with the libraries that were chosen for this host."""
    if backends == MatmulBackends() or x.device.type != "cpu":
        return F.linear(x, weight)
    out: Tensor = _Linear.apply(x, weight, backends)  # type: ignore[no-untyped-call]
    return out

"""Matrix products of linear layers, by the library that is fastest on this host.

PyTorch's CPU build has two: MKL (its default in float32) and oneDNN. MKL takes a slow path on some
AMD CPUs, where oneDNN is up to 2.4 times faster; elsewhere MKL is faster.
`yoked.train.decisions.products` times both at the model's own shapes.

Shape legend: N rows (tokens), I input features, O output features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

# "default": torch.mm, which is MKL in float32 and oneDNN in bfloat16.
MatmulBackend = Literal["default", "onednn"]
MATMUL_BACKENDS: tuple[MatmulBackend, ...] = get_args(MatmulBackend)
# A private operator of PyTorch; builds without oneDNN lack it.
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@dataclass(frozen=True)
class MatmulBackends:
    """The library for each of a linear layer's three products. run.json has these names."""

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
    """Whether mm_nt can call oneDNN for float32 on the CPU."""
    here: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return here and _onednn_linear is not None


def mm_nt(a_NI: Tensor, b_OI: Tensor, backend: MatmulBackend) -> Tensor:
    """a @ b.T, (N, O). Either may be a transposed view: no copy is made of it."""
    if backend == "onednn":
        # No bias, no activation.
        product: Tensor = _onednn_linear(a_NI, b_OI, None, "none", [], "")
        return product
    return torch.mm(a_NI, b_OI.t())


def addmm_nt_(out_NO: Tensor, a_NI: Tensor, b_OI: Tensor, backend: MatmulBackend) -> None:
    """out += a @ b.T, in place; out may be float32 where a and b are bfloat16."""
    if backend == "default" and out_NO.dtype == a_NI.dtype:
        out_NO.addmm_(a_NI, b_OI.t())  # a GEMM that accumulates: no temporary
    else:
        # addmm_ takes one dtype only, and oneDNN's operator cannot accumulate.
        out_NO += mm_nt(a_NI, b_OI, backend)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, backends: MatmulBackends) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.backends = backends
        x_NI = x.reshape(-1, x.size(-1))
        y_NO = mm_nt(x_NI, weight_OI, backends.forward)
        return y_NO.view(*x.shape[:-1], weight_OI.size(0))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight_OI = ctx.saved_tensors
        dy_NO = upstream[0].reshape(-1, weight_OI.size(0))
        dx = dweight_OI = None
        if ctx.needs_input_grad[0]:
            dx = mm_nt(dy_NO, weight_OI.t(), ctx.backends.grad_input).view(x.shape)  # dy @ W
        if ctx.needs_input_grad[1]:
            x_NI = x.reshape(-1, x.size(-1))
            dweight_OI = mm_nt(dy_NO.t(), x_NI.t(), ctx.backends.grad_weight)  # dy.T @ x
        return dx, dweight_OI, None


def linear(x: Tensor, weight_OI: Tensor, backends: MatmulBackends) -> Tensor:
    """x (..., I) @ weight.T, (..., O)."""
    # Nothing to choose (a GPU has one library): F.linear's backward pass needs no Python.
    if backends == MatmulBackends() or x.device.type != "cpu":
        return F.linear(x, weight_OI)
    y: Tensor = _Linear.apply(x, weight_OI, backends)  # type: ignore[no-untyped-call]
    return y

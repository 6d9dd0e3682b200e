"""The layers' elementwise chains, each in one pass over memory where the C kernels are built.

Everywhere else (a GPU, float64, no C compiler) the same functions are plain PyTorch.

Shape legend: B batch rows, T tokens a row, C channels, H heads, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.train import kernels

# PyTorch's default for F.rms_norm in float32; nanochat has it in every dtype.
NORM_EPS = 2.0**-23


class _ReluSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return kernels.relu_square(x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return kernels.relu_square_backward(x, upstream[0].contiguous())


def relu_square(x: Tensor) -> Tensor:
    """relu(x)^2."""
    if kernels.usable(x):
        y: Tensor = _ReluSquare.apply(x)  # type: ignore[no-untyped-call]
        return y
    return F.relu(x).square()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # Backward computes the norm of each row again: cheaper than to keep it.
        ctx.save_for_backward(x)
        return kernels.rms_norm(x, NORM_EPS)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return kernels.rms_norm_backward(x, upstream[0].contiguous(), NORM_EPS)


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without a learned weight."""
    if kernels.usable(x):
        y: Tensor = _RmsNorm.apply(x)  # type: ignore[no-untyped-call]
        return y
    return F.rms_norm(x, (x.size(-1),), eps=NORM_EPS)


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on halves (not interleaved pairs); cos, sin (T, 1, D/2)."""
    first, second = x_BTHD.chunk(2, dim=-1)  # (B, T, H, D/2) each
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class _RotateNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, cos, sin)
        ctx.scale = scale
        return kernels.rotate_norm(x, cos, sin, NORM_EPS, scale)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        x, cos, sin = ctx.saved_tensors
        dy = upstream[0]
        # The kernel takes any strides but that of D: attention's (B, H, T, D) needs no copy.
        if dy.stride(-1) != 1:
            dy = dy.contiguous()
        dx = kernels.rotate_norm_backward(x, cos, sin, dy, NORM_EPS, ctx.scale)
        return dx, None, None, None


def rotate_norm(x_BTHD: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
    """scale * norm(rotate(x)), (B, T, H, D); the kernel lays it out as (B, H, T, D) in memory."""
    # What the kernel needs: tokens at one distance through the batch, heads without gaps.
    tokens = x_BTHD.size(1)
    evenly = x_BTHD.stride(0) == tokens * x_BTHD.stride(1) or x_BTHD.size(0) == 1
    whole_heads = x_BTHD.stride(3) == 1 and x_BTHD.stride(2) == x_BTHD.size(3)
    if evenly and whole_heads and x_BTHD.dtype == cos.dtype and kernels.usable(cos, sin):
        y: Tensor = _RotateNorm.apply(x_BTHD, cos, sin, scale)  # type: ignore[no-untyped-call]
        return y
    return norm(rotate(x_BTHD, cos, sin)) * scale


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, z, a, b)
        return kernels.mix(x, z, float(a), float(b))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        x, z, a, b = ctx.saved_tensors
        dx, dz, sums = kernels.mix_backward(x, z, upstream[0].contiguous(), float(a), float(b))
        return dx, dz, sums[0].to(a.dtype), sums[1].to(b.dtype)


def mix(x: Tensor, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a x + b z for two tensors of one shape and 0-D fp32 factors."""
    if x.dtype == z.dtype and kernels.usable(x, z):
        y: Tensor = _Mix.apply(x, z, a, b)  # type: ignore[no-untyped-call]
        return y
    return a * x + b * z

"""AdamW (Loshchilov and Hutter 2017) in arithmetic that is equal on all hosts.

Every step is an IEEE addition, subtraction, multiplication, division or square root of fp32
numbers in a fixed order, whether the compiled kernel or PyTorch executes it, so ranks on
unlike CPUs that hold the same gradient compute the same bits and none needs to send weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from yoked.train import kernels
from yoked.train.kernels import cuda
from yoked.train.model.precision import widen

EPS = 1e-10  # nanochat's
ROWS_AT_ONCE = 2048  # bounds the temporaries where PyTorch computes


def coefficients(
    step: int, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = EPS
) -> Tensor:
    """The scalars of one update, (6,) fp32, rounded once and for all; step counts from 1."""
    # Computed in float64: float32 powers differ between the maths libraries of hosts.
    beta1, beta2, lr, weight_decay = (float(np.float32(x)) for x in (*betas, lr, weight_decay))
    values = [
        1 - lr * weight_decay,
        1 - beta1,
        1 - beta2,
        1 - beta2**step,
        eps,
        lr / (1 - beta1**step),
    ]
    return torch.tensor(values, dtype=torch.float32)


@torch.no_grad()
def adamw_update(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    scalars: Tensor,
    slot: Tensor | None = None,
) -> None:
    """One step in place. parameter, first, second: one shape and dtype (fp32 or bf16).

    gradient: fp32 of that shape; or, with slot (rows,) int32, the rows (used, C) that have one:
    the other rows' gradient is zero, and they go on moving with their momentum.
    scalars: from `coefficients`, on the parameter's device.
    """
    assert scalars.device == parameter.device, f"{scalars.device}, not {parameter.device}"
    if parameter.dim() != 2:
        # Scalars are one row: the kernel goes row by row.
        parameter, gradient, first, second = (
            x.view(1, -1) for x in (parameter, gradient, first, second)
        )
    if kernels.usable(parameter, gradient, first, second):
        kernels.adamw_rows(parameter, gradient, first, second, slot, scalars)
        return
    if cuda.usable(parameter, gradient, first, second):
        cuda.adamw_rows(parameter, gradient, first, second, slot, scalars)
        return
    for start in range(0, parameter.size(0), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = gradient[rows] if slot is None else _dense_rows(gradient, slot[rows])
        _update(parameter[rows], part, first[rows], second[rows], scalars)


def _dense_rows(gradient: Tensor, slot: Tensor) -> Tensor:
    """(rows, C). By a mask as index, the host would wait until a GPU knows how many rows it has."""
    if not len(gradient):
        return gradient.new_zeros(len(slot), gradient.size(1))
    unused = slot < 0  # -1: a gradient of zero
    return gradient[slot.clamp_min(0).long()].masked_fill_(unused[:, None], 0.0)


def _update(p: Tensor, g: Tensor, first: Tensor, second: Tensor, scalars: Tensor) -> None:
    # Tensors on the device: by a number, CUDA would multiply with the rounded reciprocal.
    keep, one_minus_beta1, one_minus_beta2, bias2, eps, step_size = scalars.unbind()
    # Each operation stands alone: lerp and addcdiv may fuse multiply and add, which rounds once
    # instead of twice, on some CPUs and in some lanes only.
    m, v = widen(first), widen(second)
    m = m + (g - m) * one_minus_beta1
    v = v + (g * g - v) * one_minus_beta2
    update = m / (_square_root(v / bias2) + eps)  # m's bias correction is in step_size
    p.copy_(widen(p) * keep - update * step_size)
    first.copy_(m)
    second.copy_(v)


def _square_root(x: Tensor) -> Tensor:
    # On a CPU PyTorch's float32 root may be off by a unit in the last place; one taken in
    # float64 is never near enough to the middle of two float32 numbers to be rounded wrongly.
    return x.double().sqrt().to(x.dtype) if x.device.type == "cpu" else x.sqrt()

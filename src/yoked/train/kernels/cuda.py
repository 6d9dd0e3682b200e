"""The optimizer's pass on a CUDA device, compiled at first use by NVRTC.

NVRTC is in torch's own wheel: no compiler, no CUDA toolkit and no Triton is needed on the host.
Inductor would not do: it fuses multiplications with additions and approximates division and root,
and AdamW's bits must be those of all ranks.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("adamw.cu")
THREADS = 256
_NAMES = {torch.float32: "yoked_adamw_f32", torch.bfloat16: "yoked_adamw_bf16"}


@functools.cache
def _compiled(dtype: torch.dtype, device_index: int) -> Any:
    """torch's handle of the kernel for a device; None where it cannot be had."""
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)  # since torch 2.9
    if compile_kernel is None:
        return None
    try:
        with torch.cuda.device(device_index):
            return compile_kernel(SOURCE.read_text(), _NAMES[dtype])
    except (OSError, RuntimeError):
        # An NVRTC that is not there, or too old for the card: PyTorch gives the same bits, slower.
        return None


def usable(*tensors: Tensor) -> bool:
    """Whether the kernel can work on these: the parameter first, then what is as it."""
    first = tensors[0]
    return (
        first.device.type == "cuda"
        and first.dtype in _NAMES
        and all(tensor.is_contiguous() for tensor in tensors)
        and _compiled(first.dtype, first.device.index) is not None
    )


def adamw_rows(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    slot: Tensor | None,
    coefficients: Tensor,
) -> None:
    """As `yoked.train.kernels.adamw_rows`, on a device."""
    rows, width = parameter.shape
    if parameter.numel() == 0:
        return
    # The handle takes no null pointer: where there are no slots, any address does.
    slots = coefficients if slot is None else slot
    operands = [parameter, gradient, first, second, slots, coefficients]
    with torch.cuda.device(parameter.device):
        _compiled(parameter.dtype, parameter.device.index)(
            grid=(-(-parameter.numel() // THREADS), 1, 1),
            block=(THREADS, 1, 1),
            args=[*operands, rows, width, int(slot is not None)],
        )

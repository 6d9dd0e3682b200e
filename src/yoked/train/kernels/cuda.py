"""AdamW and the codecs on a CUDA device: passes compiled at first use by NVRTC.

NVRTC is in torch's own wheel: no compiler, no CUDA toolkit and no Triton is needed on the host.
Inductor would not do: it fuses multiplications with additions and approximates division and root,
and what all ranks compute from the same bytes must have the same bits.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("adamw.cu")
CODECS_SOURCE = SOURCE.with_name("codecs.cu")
THREADS = 256
_NAMES = {torch.float32: "yoked_adamw_f32", torch.bfloat16: "yoked_adamw_bf16"}
# Numbers that a block of threads encodes.
_ENCODED_AT_ONCE = {"bf16": THREADS, "int8": THREADS, "int4": 2 * THREADS}


@functools.cache
def _compiled(source: Path, name: str, device_index: int) -> Any:
    """torch's handle of a kernel for a device; None where it cannot be had."""
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)  # since torch 2.9
    if compile_kernel is None:
        return None
    try:
        with torch.cuda.device(device_index):
            return compile_kernel(source.read_text(), name)
    except (OSError, RuntimeError):
        # An NVRTC that is not there, or too old for the card: PyTorch gives the same bits, slower.
        return None


def _run(source: Path, name: str, device: torch.device, blocks: int, args: list[Any]) -> None:
    """On the current stream. blocks: of threads; none where there is nothing to do."""
    if not blocks:
        return
    with torch.cuda.device(device):
        kernel = _compiled(source, name, device.index)
        kernel(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=args)


def usable(*tensors: Tensor) -> bool:
    """Whether the kernel can work on these: the parameter first, then what is as it."""
    first = tensors[0]
    return (
        first.device.type == "cuda"
        and first.dtype in _NAMES
        and all(tensor.is_contiguous() for tensor in tensors)
        and _compiled(SOURCE, _NAMES[first.dtype], first.device.index) is not None
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
    # The handle takes no null pointer: where there are no slots, any address does.
    slots = coefficients if slot is None else slot
    operands = [parameter, gradient, first, second, slots, coefficients]
    _run(
        SOURCE,
        _NAMES[parameter.dtype],
        parameter.device,
        -(-parameter.numel() // THREADS),
        [*operands, rows, width, int(slot is not None)],
    )


def has_codec(name: str, device: torch.device) -> bool:
    """Whether there are kernels of a codec for a device, which has a number if it is CUDA's."""
    return (
        device.type == "cuda"
        and name in _ENCODED_AT_ONCE
        and all(
            _compiled(CODECS_SOURCE, f"yoked_{way}_{name}", device.index) is not None
            for way in ("encode", "decode")
        )
    )


def encode(codec: str, values: Tensor, out: Tensor, lost: Tensor | None) -> None:
    """As `yoked.train.kernels.encode`, on a device."""
    _run(
        CODECS_SOURCE,
        f"yoked_encode_{codec}",
        values.device,
        -(-values.numel() // _ENCODED_AT_ONCE[codec]),
        [values, values if lost is None else lost, out, values.numel(), int(lost is not None)],
    )


def decode(codec: str, encoded: Tensor, out: Tensor, add: bool) -> None:
    """As `yoked.train.kernels.decode`, on a device."""
    blocks = -(-out.numel() // THREADS)
    args = [encoded, out, out.numel(), int(add)]
    _run(CODECS_SOURCE, f"yoked_decode_{codec}", out.device, blocks, args)

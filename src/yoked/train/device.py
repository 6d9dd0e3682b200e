"""The device that a rank trains on."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence

import torch

from yoked.agent import processors
from yoked.costmodel.memory import USABLE_GPU_FRACTION
from yoked.errors import DeviceError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def is_left_open(device_type: str) -> bool:
    """Whether nobody says where this host trains: neither the flag nor its yoked.toml."""
    return device_type == os.environ.get("YOKED_DEVICE", "auto") == "auto"


def pick_device(device_type: str, local_rank: int) -> torch.device:
    """The device that is asked for; raises DeviceError when it is not there.

    auto: what yoked.toml says of this host, which is in the environment variable YOKED_DEVICE, or
    the first of cuda, mps and cpu that is there.
    """
    said = os.environ.get("YOKED_DEVICE", "auto")
    if device_type == "auto":
        device_type = said
    if device_type == "auto":
        device_type = "cpu"
        if torch.cuda.is_available():
            device_type = "cuda"
        elif torch.backends.mps.is_available():
            device_type = "mps"
    if device_type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= local_rank:
            raise DeviceError(
                f"rank {local_rank} of this host asks for CUDA device {local_rank}; "
                f"there are {count}",
                fix="--device-type=cpu, or a PyTorch build with CUDA and a GPU for each rank"
                if said in ("auto", "cuda")
                else f"change device = {said!r} of this host in the fleet's file, or leave the "
                "flag out",
            )
        return torch.device("cuda", local_rank)
    if device_type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError(
            "this host has no Metal device (mps)", fix="--device-type=cpu, or leave the flag out"
        )
    return torch.device(device_type)


def prepare_cuda(device: torch.device) -> None:
    """Compute on this GPU, products of float32 in TF32, as nanochat has it.

    A GPU's float32 is then not a CPU's: its products have 10 bits of mantissa.
    """
    # Else helpers make a context on the host's first GPU.
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")


def device_name(device: torch.device) -> str:
    """The model of the GPU, or of this host's CPU."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(processors.facts()["cpu_model"])


def usable_gpu_bytes(device: torch.device) -> float | None:
    """Memory of a GPU that a rank may use; None where there is none of its own, or unknown."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return USABLE_GPU_FRACTION * free


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device. Of CUDA the host does not wait until it is there, nor for what the
    GPU has to do before; Metal may still read memory that the host has given away by then.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def staging_for(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Room in host memory for what goes to a device or comes from it: page-locked for CUDA, whose
    bus then has its full rate; torch keeps what was freed.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy a device's tensor to host memory; what is returned waits for it, and has it."""
    if tensor.device.type != "cuda":
        copied = tensor.cpu()
        return lambda: copied
    there = staging_for(tensor.shape, tensor.dtype, tensor.device)
    there.copy_(tensor, non_blocking=True)
    arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrival.record(torch.cuda.current_stream(tensor.device))

    def arrived() -> torch.Tensor:
        arrival.synchronize()
        return there

    return arrived


def synchronize(device: torch.device) -> None:
    """Wait for what was started on a GPU; on a CPU nothing is to be waited for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: activations of some MB would be unmapped and faulted anew.

    Source: mallopt(3). Elsewhere than on glibc, nothing happens.
    """
    import ctypes

    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 32 << 20)
    libc.mallopt(trim_threshold, (1 << 31) - 1)
    libc.mallopt(top_pad, 64 << 20)

"""AdamW's bits: those of the kernel for CUDA, compiled for the CPU, and of a device."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from yoked.train.kernels.cuda import SOURCE
from yoked.train.optim.adamw import adamw_update, coefficients

ROWS, WIDTH, USED = 301, 70, 100
Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor], None]


@pytest.fixture(scope="module")
def cuda_source(tmp_path_factory: pytest.TempPathFactory) -> Update:
    """The kernel for CUDA as a function of the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("cuda")
    grid = Path(__file__).with_name("grid.h").read_text()
    runs = "RUN(yoked_adamw_f32, float)\nRUN(yoked_adamw_bf16, bf16)\n"
    (folder / "adamw.cc").write_text(f"{grid}\n{SOURCE.read_text()}\n{runs}")
    command = "g++ -O2 -shared -fPIC -ffp-contract=off -o adamw.so adamw.cc"
    subprocess.run(command.split(), cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "adamw.so"))

    def update(p, g, first, second, slot, scalars):
        name = {torch.float32: "f32", torch.bfloat16: "bf16"}[p.dtype]
        tensors = (p, g, first, second, scalars if slot is None else slot, scalars)
        addresses = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        run = getattr(library, f"run_yoked_adamw_{name}")
        run(*addresses, ROWS, WIDTH, int(slot is not None))

    return update


def seven_updates(update: Update, dtype: torch.dtype, slots: bool, device="cpu") -> list[Tensor]:
    """Parameter and moments after seven steps on gradients over eight decades."""
    dice = torch.Generator().manual_seed(3)
    state = [torch.randn(ROWS, WIDTH, generator=dice), *(torch.zeros(ROWS, WIDTH),) * 2]
    state = [tensor.to(dtype).clone().to(device) for tensor in state]
    for step in range(1, 8):
        rows = USED if slots else ROWS
        scale = 10 ** (2 * torch.randn(rows, 1, generator=dice))
        gradient = torch.randn(rows, WIDTH, generator=dice) * scale
        slot = None
        if slots:
            slot = torch.full((ROWS,), -1, dtype=torch.int32)
            order = torch.randperm(ROWS, generator=dice)[:USED]
            slot[order] = torch.arange(USED, dtype=torch.int32)
            slot = slot.to(device)
        scalars = coefficients(step, 0.3, (0.8, 0.995), 0.01).to(device)
        update(state[0], gradient.to(device), state[1], state[2], slot, scalars)
    return [tensor.cpu() for tensor in state]


def ours(p, g, first, second, slot, scalars) -> None:
    adamw_update(p, g, first, second, scalars, slot)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_for_cuda_has_the_cpus_bits(
    cuda_source: Update, dtype: torch.dtype, slots: bool
) -> None:
    here, there = (seven_updates(update, dtype, slots) for update in (ours, cuda_source))

    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_has_the_cpus_bits(device, dtype: torch.dtype, slots: bool) -> None:
    if device.type == "mps":
        pytest.skip("Metal's square roots and small numbers are not IEEE's")
    here, there = (seven_updates(ours, dtype, slots, where) for where in ("cpu", device))

    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)

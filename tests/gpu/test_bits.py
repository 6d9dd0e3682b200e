"""Bits of AdamW and the codecs: of the kernels for CUDA, compiled for the CPU, and of a device."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.sync.test_codecs import draw, special
from torch import Tensor

from yoked.train.kernels import cuda
from yoked.train.optim.adamw import adamw_update, coefficients
from yoked.train.sync.codecs import CODECS

ROWS, WIDTH, USED = 301, 70, 100
LENGTHS = (0, 1, 33, 64, 257, 1000)
Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor], None]
Encode = Callable[[Tensor, Tensor, Tensor | None], None]
Decode = Callable[[Tensor, Tensor, bool], None]
RUNS = """
RUN_ADAMW(yoked_adamw_f32, float)
RUN_ADAMW(yoked_adamw_bf16, bf16)
"""
CODEC_RUNS = """
RUN_ENCODE(yoked_encode_bf16, false)
RUN_ENCODE(yoked_encode_int8, true)
RUN_ENCODE(yoked_encode_int4, true)
RUN_DECODE(yoked_decode_bf16)
RUN_DECODE(yoked_decode_int8)
RUN_DECODE(yoked_decode_int4)
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, ctypes.CDLL]:
    """The kernels for CUDA as functions of the CPU, by their source."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("cuda")
    grid = Path(__file__).with_name("grid.h").read_text()
    found = {}
    for source, runs in ((cuda.SOURCE, RUNS), (cuda.CODECS_SOURCE, CODEC_RUNS)):
        (folder / f"{source.stem}.cc").write_text(f"{grid}\n{source.read_text()}\n{runs}")
        command = "g++ -O2 -shared -fPIC -pthread -ffp-contract=off -o"
        words = [*command.split(), f"{source.stem}.so", f"{source.stem}.cc"]
        subprocess.run(words, cwd=folder, check=True)
        found[source] = ctypes.CDLL(str(folder / f"{source.stem}.so"))
    return found


@pytest.fixture
def launched_here(libraries: dict[Path, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched on CUDA runs on the CPU."""

    def compiled(source: Path, name: str, device_index: int) -> Any:
        run = getattr(libraries[source], f"run_{name}")

        def kernel(grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]) -> None:
            assert block == (256, 1, 1)
            known = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in args]
            run(grid[0], *known)

        return kernel

    monkeypatch.setattr(cuda, "_compiled", compiled)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


def require_ieee(device: torch.device) -> None:
    if device.type == "mps":
        pytest.skip("Metal's square roots and small numbers are not IEEE's")


def require_same(here: list[Tensor], there: list[Tensor]) -> None:
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


# --- AdamW


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


@pytest.mark.usefixtures("launched_here")
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_for_cuda_has_the_cpus_bits(dtype: torch.dtype, slots: bool) -> None:
    here, there = (seven_updates(update, dtype, slots) for update in (ours, cuda.adamw_rows))

    require_same(here, there)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_has_the_cpus_bits(device, dtype: torch.dtype, slots: bool) -> None:
    require_ieee(device)
    here, there = (seven_updates(ours, dtype, slots, where) for where in ("cpu", device))

    require_same(here, there)


# --- codecs

BY_KERNEL = pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
KINDS = pytest.mark.parametrize(
    "kind", ["random", "denormal", "zero", "huge", "not finite", "ties", "near ties"]
)


def numbers(kind: str, count: int) -> Tensor:
    if kind not in ("ties", "near ties"):
        return special(kind, count)
    # Scales of 1, and what lies in the middle between two multiples of them, or of bfloat16.
    values = draw(count, seed=1).mul(4).round().clamp(-13, 13) / 2
    if kind == "near ties":
        # By another scale, and near the middle: the last bit of a quotient decides.
        values[::64] = 7.0
        values[::256] = 127.0
        return values * 0.0123
    values[1::2] = 1 + draw(count, seed=2)[1::2].clamp(-1, 1).mul(64).round() / 256
    values[::64] = 7.0
    values[::256] = 127.0
    return values


def made(name: str, kind: str, encode: Encode, decode: Decode, device="cpu") -> list[Tensor]:
    """What numbers decode to, what is lost, and their bytes, which begin at any address."""
    found: list[Tensor] = []
    for count in LENGTHS:
        for feedback in (None, draw(count, 2) * 1e-3):
            values, total = numbers(kind, count).to(device), draw(count, 3).to(device)
            lost = None if feedback is None else feedback.to(device)
            room = torch.zeros(1 + CODECS[name].encoded_bytes(count), dtype=torch.uint8)
            payload = room.to(device)[1:]
            encode(values, payload, lost)
            decode(payload, total, True)
            decode(payload, values, False)
            kept = [total, values, *([] if lost is None else [lost])]
            # A GPU has other bits for what is not a number.
            found += [each.cpu().nan_to_num(1e30).view(torch.int32) for each in kept]
            found += [] if name == "fp32" else [payload.cpu()]
    return found


def by_codec(name: str) -> tuple[Encode, Decode]:
    codec = CODECS[name]
    return codec.encode, lambda payload, out, add: codec.decode(payload, out, add=add)


@pytest.mark.usefixtures("launched_here")
@KINDS
@BY_KERNEL
def test_codecs_for_cuda_make_the_cpus_bytes_and_numbers(name: str, kind: str) -> None:
    def encode(values: Tensor, payload: Tensor, lost: Tensor | None) -> None:
        cuda.encode(name, values, payload, lost)

    def decode(payload: Tensor, out: Tensor, add: bool) -> None:
        cuda.decode(name, payload, out, add)

    require_same(made(name, kind, *by_codec(name)), made(name, kind, encode, decode))


@KINDS
@pytest.mark.parametrize("name", list(CODECS))
def test_a_device_makes_the_cpus_bytes_and_numbers(device, name: str, kind: str) -> None:
    require_ieee(device)
    by_codecs = by_codec(name)

    require_same(made(name, kind, *by_codecs), made(name, kind, *by_codecs, device))


@pytest.mark.parametrize("capability", ["80", "89", "90"])
@pytest.mark.parametrize(
    ("source", "name"),
    [(cuda.SOURCE, "yoked_adamw_f32"), (cuda.CODECS_SOURCE, "yoked_encode_int8")],
)
def test_nvrtc_compiles_the_kernels_where_no_gpu_is(
    source: Path, name: str, capability: str
) -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch has no NVRTC: it is built for CPUs")

    compiled = torch.cuda._utils._nvrtc_compile(source.read_text(), name, capability)

    assert compiled[1] == name


def test_a_gpu_encodes_by_the_kernels(device) -> None:
    if device.type != "cuda":
        pytest.skip("kernels are for CUDA alone")
    assert all(CODECS[name].works_on(device) == device for name in ("bf16", "int8", "int4"))

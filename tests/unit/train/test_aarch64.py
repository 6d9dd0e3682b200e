"""The compiled passes on an aarch64 CPU, by a cross compiler and an emulator, beside this CPU's.

What travels and what updates weights is the same to the bit; sums differ by their order.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from yoked.train.kernels import _FUNCTIONS, CODECS, CODECS_SOURCE, FLAGS, SOURCE

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
PROGRAM = Path(__file__).with_name("every_kernel.c")
# No sum in them, so no order of it.
SAME_BITS = ("encode", "decode", "adamw", "relu_square", "mix_f32", "mix_bf16")
# Of the largest number of an output: a few units in the last place of each type.
TOLERANCE = {"f": 2e-6, "b": 1e-2}


def build(compiler: str, program: Path, *flags: str) -> Path:
    argv = [compiler, *(flag for flag in FLAGS if flag != "-shared"), *flags, "-o", str(program)]
    sources = [str(path) for path in (PROGRAM, SOURCE, CODECS_SOURCE)]
    subprocess.run([*argv, *sources, "-lm"], check=True, capture_output=True, timeout=120)
    return program


def outputs(*argv: str) -> dict[str, tuple[str, bytes]]:
    """{name: (kind, bytes)} of what the program writes."""
    said = subprocess.run(argv, check=True, capture_output=True, timeout=120).stdout
    found = {}
    while said:
        head, said = said.split(b"\n", 1)
        name, kind, size = head.decode().split()
        found[name] = (kind, said[: int(size)])
        said = said[int(size) :]
    return found


def numbers(kind: str, data: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if kind == "b":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, bytes]]]:
    """What this CPU and an emulated aarch64 compute."""
    if missing := [tool for tool in (COMPILER, EMULATOR, "cc") if shutil.which(tool) is None]:
        pytest.skip(
            f"no {missing[0]}: apt install gcc-aarch64-linux-gnu qemu-user libc6-dev-arm64-cross"
        )
    folder = tmp_path_factory.mktemp("built")
    fast = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    here = build("cc", folder / "here", fast)
    there = build(COMPILER, folder / "there", "-march=armv8-a")
    return [outputs(str(here)), outputs(EMULATOR, "-L", LIBRARIES, str(there))]


def test_every_pass_is_computed(both: list[dict[str, tuple[str, bytes]]]) -> None:
    here, there = both

    passes = {
        name.format(kind).removesuffix("_rows")
        for name in _FUNCTIONS
        for kind in (CODECS if "code" in name else ("f32", "bf16"))
    }
    assert passes <= set(here)
    assert here.keys() == there.keys()


def test_payloads_and_updates_are_the_same_to_the_bit(
    both: list[dict[str, tuple[str, bytes]]],
) -> None:
    here, there = both

    compared = [name for name in here if name.startswith(SAME_BITS)]
    assert len(compared) >= 20
    assert [name for name in compared if here[name] != there[name]] == []


def test_sums_differ_by_their_order_alone(both: list[dict[str, tuple[str, bytes]]]) -> None:
    here, there = both

    for name, (kind, data) in here.items():
        if kind != "u":
            own, other = numbers(kind, data), numbers(kind, there[name][1])
            worst = float(np.abs(own - other).max() / np.abs(own).max())
            assert worst <= TOLERANCE[kind], name

"""Whether PyTorch has a kernel for CUDA and for Metal of every operation of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu import simulated
from tests.gpu.test_step import bits_per_byte
from tests.gpu.tiny import tiny_trainer

yaml = pytest.importorskip("yaml")
torchgen = pytest.importorskip("torchgen")
TABLE = Path(torchgen.__file__).with_name("packaged") / "ATen/native/native_functions.yaml"


def known() -> dict[str, dict]:
    rows = yaml.load(TABLE.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {f"aten::{row['func'].split('(')[0]}": row for row in rows}


def has_kernel(table: dict[str, dict], operation: str, backend: str) -> bool:
    row = table[operation]
    delegate = row.get("structured_delegate")
    if delegate:
        return has_kernel(table, f"aten::{delegate}", backend)
    dispatch = row.get("dispatch")
    # A ufunc's kernels are said otherwise in the table.
    if dispatch is None or "ufunc_inner_loop" in row:
        return True
    keys = {key.strip() for keys in dispatch for key in keys.split(",")}
    return backend in keys or any(key.startswith("Composite") for key in keys)


@pytest.mark.parametrize("windows", ["L", "SSSL"])
def test_every_operation_of_a_step_has_a_kernel(sim: torch.device, windows: str) -> None:
    with simulated.entered(metal=True), simulated.counted() as tally:
        trainer = tiny_trainer(sim, windows=windows)
        trainer.step(0)
        bits_per_byte(trainer, sim)

    table = known()
    assert len(tally.operations) > 50
    for backend in ("CUDA", "MPS"):
        assert [op for op in tally.operations if not has_kernel(table, op, backend)] == []

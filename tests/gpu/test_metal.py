"""Whether PyTorch has a kernel for CUDA and for Metal of every operation of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu import simulated
from tests.gpu.rank_on_device import wait_for_device
from tests.gpu.test_step import bits_per_byte
from tests.gpu.tiny import tiny_trainer

from yoked.train import resolve
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions import device, products, timing

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


def test_a_gpu_on_which_a_row_takes_longer_leaves_the_training_to_the_cpu(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "pick_device", lambda device_type, local_rank: sim)
    monkeypatch.setattr(timing, "synchronize", wait_for_device)
    monkeypatch.setitem(resolve._DEFAULTS, simulated.NAME, resolve._DEFAULTS["mps"])
    monkeypatch.setattr(products, "GPU_SAMPLE_FLOPS", products.SAMPLE_FLOPS)
    config = TrainConfig(depth=2, head_dim=32, max_seq_len=128, vocab_size=512, threads="1")

    with simulated.entered(metal=True, lag_s=0.005), simulated.counted() as tally:
        found, why = device.choose_device(config, RankInfo(0, 0, 1, 1))

    assert found == device.CPU
    assert why is not None
    assert why.reason.startswith("sim would take")
    # A layer and the lm_head were tried there, forward and backward.
    assert {"_log_softmax", "tanh", "exp"} & set(tally.kernels)

"""A training step on a device, beside the same step in plain PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.gpu import simulated
from tests.gpu.tiny import Rows, tiny_trainer

from yoked.train import trainer as trainer_module
from yoked.train.trainer import evaluate_bpb

STEPS = 3


def bits_per_byte(trainer, device) -> float:
    token_bytes = torch.ones(2048, dtype=torch.int64).to(device)
    return evaluate_bpb(trainer, lambda n: Rows().batch(int(n[0]), int(n[-1]) + 1), 3, token_bytes)


@pytest.mark.usefixtures("plain_passes")
@pytest.mark.parametrize("windows", ["L", "SSSL"])
@pytest.mark.parametrize(
    ("dtype", "rel"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-3)], ids=["float32", "bfloat16"]
)
def test_steps_and_an_evaluation_are_those_of_the_cpu(device, dtype, rel, windows):
    # 5 rows: the last micro-batch is a smaller one.
    want, got = (tiny_trainer(where, dtype, windows, rows=[5]) for where in ("cpu", device))

    by_cpu = [want.step(step).nats for step in range(STEPS)]
    by_device = [got.step(step).nats for step in range(STEPS)]

    assert by_device == pytest.approx(by_cpu, rel=rel)
    assert bits_per_byte(got, device) == pytest.approx(bits_per_byte(want, "cpu"), rel=rel)


@pytest.mark.usefixtures("plain_passes")
def test_a_step_and_an_evaluation_need_no_float64_on_metal(sim):
    with simulated.entered(metal=True):
        trainer = tiny_trainer(sim)

        assert np.isfinite([trainer.step(step).nats for step in range(2)]).all()
        assert np.isfinite(bits_per_byte(trainer, sim))


def test_layers_that_are_computed_again_give_the_same_losses(device):
    plain, again = tiny_trainer(device), tiny_trainer(device)
    again.model.checkpoints_blocks = True

    # A GPU adds gradients of table rows in any order.
    rel = 1e-9 if device.type == simulated.NAME else 1e-5
    for step in range(2):
        assert again.step(step).nats == pytest.approx(plain.step(step).nats, rel=rel)


# What may wait for the device in a step of four micro-batches, and how often.
WAITS = {
    "train/model/cross_entropy.py:loss": 4,
}


def test_the_host_waits_for_the_device_at_these_lines_alone(sim):
    with simulated.entered():
        trainer = tiny_trainer(sim)
        trainer.step(0)
        with simulated.counted() as tally:
            trainer.step(1)

    assert dict(tally.lines) == WAITS


def test_a_rank_counts_what_the_device_computes_and_not_what_it_was_told(sim, monkeypatch):
    monkeypatch.setattr(trainer_module, "synchronize", lambda device: simulated.synchronize())
    lag_s = 0.0004
    with simulated.entered(lag_s=lag_s):
        trainer = tiny_trainer(sim, batch=2)
        trainer.step(0)
        with simulated.counted() as tally:
            stats = trainer.step(1)

    kernels = sum(tally.kernels.values())
    assert stats.compute_s > kernels * lag_s
    # The optimizer's part: no more than its own kernels and the host's time for them.
    assert stats.fixed_s < stats.compute_s / 2

"""What a plan takes a fleet's devices for."""

from __future__ import annotations

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.records.measurement import Measurement, StepCost
from yoked.train.config import TrainConfig
from yoked.workflows.planning import PlannedDevice, measured_devices, resolve_run


def measured(ranks: int, memory_bytes: int) -> Measurement:
    """A host with so many GPUs and so much memory in all of them."""
    shape = ModelShape.from_depth(
        4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32_768, window_pattern="L"
    )
    cost = StepCost(
        host="i9",
        device="cuda",
        dtype="bfloat16",
        threads=1,
        model=shape,
        tokens=1024,
        forward_s=0.1,
        head_s=0.1,
        backward_s=0.2,
        overhead_s=0.0,
        adamw_s=0.1,
        muon_s=0.1,
    )
    return Measurement(
        fleet="home",
        taken_s=1.8e9,
        ranks={"i9": ranks},
        memory_bytes={"i9": memory_bytes},
        links=(),
        collectives=(),
        compute=(),
        step_costs=(cost,),
    )


def test_a_rank_is_planned_with_the_memory_of_its_own_gpu() -> None:
    one = measured_devices(measured(ranks=1, memory_bytes=12_000_000_000))
    two = measured_devices(measured(ranks=2, memory_bytes=24_000_000_000))

    assert two == one == [PlannedDevice("cuda", 12e9, windows=False)]


@pytest.mark.parametrize(("probed_with", "planned"), [(True, "SSSL"), (False, "L")])
def test_a_run_on_gpus_is_planned_with_the_windows_that_its_probe_had(
    probed_with: bool, planned: str
) -> None:
    gpus = [PlannedDevice("cuda", 12e9), PlannedDevice("cuda", 24e9, probed_with)]

    assert resolve_run(TrainConfig(), gpus).shape.window_pattern == planned
    assert resolve_run(TrainConfig(window_pattern="SL"), gpus).shape.window_pattern == "SL"

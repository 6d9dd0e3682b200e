"""A GPU and a laptop, two unlike GPUs: the plan's verdict is that which a run comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import safe_syncs
from yoked.plan.costs import rank_costs
from yoked.plan.network import network_of
from yoked.plan.search import Plan, PlanRequest, make_plan
from yoked.plan.simulated_fleet import load_simulated, simulate
from yoked.train.decisions.working import Gain, WorkQuestion

RTX_4070 = """[[host]]
name = "i9-4070"
device = "cuda"
dtype = "float32"
tflops = 29
copy = "400 GB/s"
memory = "12 GB"
up = "940 Mbit/s"
"""
LAPTOP = """[[host]]
name = "i5"
dtype = "float32"
tflops = 0.5
cores = 4
copy = "30 GB/s"
memory = "16 GB"
up = "940 Mbit/s"
"""
HALF = RTX_4070.replace("i9-4070", "3060").replace("29", "14.5")
SHAPE = ModelShape.from_depth(
    8, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32_768, window_pattern="L"
)


def verdicts(folder: Path, fleet: str, tokens: int, rows: int) -> tuple[Plan, Gain]:
    """What the plan says of a fleet, and what `yoked train` asks before its first step."""
    file = folder / "fleet.toml"
    file.write_text(f"utilisation = 0.5\nrtt_ms = 0.5\n{fleet}")
    measurement = simulate(load_simulated(str(file)), SHAPE, rows)
    plan = make_plan(PlanRequest(SHAPE, tokens, device_batch_size=rows), measurement)
    question = WorkQuestion(
        SHAPE,
        rank_costs(measurement, SHAPE)["float32"],
        network_of(measurement, tuple(measurement.ranks)),
        syncs=safe_syncs(SHAPE, tokens),
        rows=tokens // SHAPE.sequence_len,
        device_batch_size=rows,
        keep=(),
    )
    return plan, question.gain(())


def test_a_laptop_beside_a_gpu_is_better_left_at_home(tmp_path: Path) -> None:
    plan, gain = verdicts(tmp_path, RTX_4070 + LAPTOP, tokens=4096, rows=8)

    assert plan.chosen.hosts == ("i9-4070",)
    assert gain.ranks == (0,)
    assert gain.now_s > 3 * gain.step_s


def test_a_gpu_half_as_fast_is_worth_having(tmp_path: Path) -> None:
    plan, gain = verdicts(tmp_path, RTX_4070 + HALF, tokens=524_288, rows=8)

    assert set(plan.chosen.hosts) == {"i9-4070", "3060"}
    assert gain.ranks == (0, 1)
    alone = plan.best_single_host.tokens_per_second
    assert plan.chosen.tokens_per_second / alone == pytest.approx(1.33, abs=0.05)

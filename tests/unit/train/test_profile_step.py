"""The profiler takes steps of the run's own trainer. How long they take is not tested."""

from __future__ import annotations

import json

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from yoked.core.schema import decode
from yoked.costmodel.model_shape import ModelShape
from yoked.errors import UsageError
from yoked.records.measurement import Compute, StepCost
from yoked.train import profile_step
from yoked.train.config import TrainConfig
from yoked.train.decisions.compute import ComputeChoices
from yoked.train.model.attention import AttentionPath
from yoked.train.model.linear import MatmulBackends

SMALL = [
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--head-dim=32", "--threads=1"),
    *("--dtype=float32", "--matmul=mkl"),
]
PATH: AttentionPath = "sdpa"
LIBRARIES = MatmulBackends(), MatmulBackends()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """One repetition of everything."""
    monkeypatch.setattr(profile_step, "MOST_STEPS", 1)
    monkeypatch.setattr(profile_step, "PRODUCT_S", 1e-9)
    monkeypatch.setattr(profile_step, "COPY_BYTES", 1_000_000)


def profiled(config: ModelShape, compute: ComputeChoices) -> profile_step.StepProfiler:
    """A profiler of a model here, in one way to compute."""
    parts = profile_step.StepProfiler(TrainConfig(), config, torch.device("cpu"))
    parts.compute_by(compute)
    return parts


@pytest.mark.usefixtures("brief")
def test_the_module_prints_one_object_with_the_records_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = torch.get_num_threads()
    try:
        status = profile_step.main([*SMALL, "--device-type=cpu", "--device-batch-size=2"])
    finally:
        torch.set_num_threads(before)

    told = json.loads(capsys.readouterr().out)
    assert status == 0
    costs = [decode(StepCost, each) for each in told["step_costs"]]
    rates = [Compute(**each) for each in told["compute"]]
    assert {rate.dtype for rate in rates} == {"float32", "bfloat16"}
    assert [cost.dtype for cost in costs] == ["float32"]
    assert costs[0].model == ModelShape(64, 512, 1, 2, 2, 64, "L")
    assert all(cost.tokens in (64, 128) for cost in costs)
    assert all(cost.threads == 1 for cost in costs)
    assert all(
        min(cost.forward_s, cost.head_s, cost.backward_s, cost.adamw_s, cost.muon_s) > 0
        for cost in costs
    )
    assert told["choices"].keys() == {cost.dtype for cost in costs}


@pytest.mark.usefixtures("brief")
def test_every_parameter_takes_part_in_the_step() -> None:
    config = ModelShape.from_depth(1, head_dim=32, sequence_len=32, vocab_size=256)
    compute = ComputeChoices("float32", "float32", *LIBRARIES, PATH, False, 1, ())
    parts = profiled(config, compute)
    before = {name: each.clone() for name, each in parts.buffers.parameters.items()}

    parts.cost("here", 2)

    # New projections are zero, so that what is behind them has no gradient in the first step.
    unchanged = [
        name for name, each in parts.buffers.parameters.items() if torch.equal(each, before[name])
    ]
    assert not any(name.startswith(("lm_head", "transformer.wte")) for name in unchanged)
    assert any("c_proj" in name for name in before.keys() - set(unchanged))


@pytest.mark.usefixtures("brief")
def test_a_second_dtype_is_profiled_as_if_it_were_the_first() -> None:
    config = ModelShape.from_depth(1, head_dim=32, sequence_len=32, vocab_size=256)
    float32 = ComputeChoices("float32", "float32", *LIBRARIES, PATH, False, 1, ())
    parts = profiled(
        config,
        ComputeChoices("bfloat16", "bfloat16", *LIBRARIES, PATH, False, 1, ()),
    )
    first = parts.cost("here", 2)

    parts.compute_by(float32)
    second = parts.cost("here", 2, profile_step.Known(first.overhead_s, 0.001))

    fresh = profiled(config, float32)
    dtypes = [
        {name: each.dtype for name, each in parts.buffers.parameters.items()}
        for parts in (parts, fresh)
    ]
    assert dtypes[0] == dtypes[1]
    moments = [
        {name: each.dtype for name, each in parts.optimizer.exp_avg_sq.items()}
        for parts in (parts, fresh)
    ]
    assert moments[0] == moments[1]
    rows = torch.from_numpy(profile_step.RandomRows(config).batch(0, 1))
    assert parts.model(rows[:, :-1]).dtype == torch.float32
    assert (second.dtype, second.tokens, second.overhead_s) == ("float32", 64, first.overhead_s)


@pytest.mark.usefixtures("brief")
def test_where_a_row_takes_seconds_one_is_enough() -> None:
    config = ModelShape.from_depth(1, head_dim=32, sequence_len=32, vocab_size=256)
    compute = ComputeChoices("float32", "float32", *LIBRARIES, PATH, False, 1, ())
    parts = profiled(config, compute)

    cost = parts.cost("here", 4, profile_step.Known(0.0, profile_step.SLOW_ROW_S))

    assert cost.tokens == 32


def test_tokens_are_drawn_as_words_are_some_often_most_seldom() -> None:
    config = ModelShape.from_depth(1, head_dim=32, sequence_len=512, vocab_size=32_768)
    stream = profile_step.RandomRows(config)

    rows = stream.batch(0, 2)

    assert rows.shape == (2, 513)
    assert rows.min() >= 0
    assert rows.max() < 32_768
    # Of text there are about 455.
    assert 300 < len(set(rows[:, :-1].flatten().tolist())) < 700
    assert (stream.batch(2, 4) != rows).any()


def test_what_does_not_grow_with_the_rows_is_the_overhead() -> None:
    assert profile_step.overhead_s({1: 0.3, 2: 0.5}) == pytest.approx(0.1)
    assert profile_step.overhead_s({1: 0.3, 8: 2.4}) == pytest.approx(0.0)
    # Two rows may take less than twice one row's time by more than a rank's noise: none.
    assert profile_step.overhead_s({1: 0.2, 2: 0.5}) == 0.0
    assert profile_step.overhead_s({1: 3.0}) == 0.0


@pytest.mark.parametrize(
    ("times_s", "batch_s", "tried"),
    [
        ({"float32": 2e-6, "bfloat16": 1e-6}, 0.3, ["bfloat16", "float32"]),
        # What all hosts have in common, however long it takes.
        ({"float32": 2e-6, "bfloat16": 1e-6}, 30.0, ["bfloat16", "float32"]),
        ({"float32": 1e-6, "bfloat16": 2e-6}, 1.9, ["float32", "bfloat16"]),
        ({"float32": 1e-6, "bfloat16": 2e-6}, 2.1, ["float32"]),
        ({"float32": 1e-6, "bfloat16": 35e-6}, 0.3, ["float32"]),
    ],
)
def test_the_fastest_dtype_comes_first_and_a_slow_one_is_left_out(
    times_s: dict[str, float], batch_s: float, tried: list[str]
) -> None:
    assert list(profile_step.dtypes_to_try(times_s, lambda: batch_s)) == tried


def test_the_first_step_only_warms_up_unless_it_is_alone() -> None:
    steps = [profile_step.PhaseTimes(s, 0.0, 0.0, 0.0, 0.0) for s in (0.2, 0.05, 0.3, 0.1)]

    assert profile_step.typical(steps).total_s == 0.1
    assert profile_step.typical(steps[:1]).total_s == 0.2


def test_what_has_no_phase_counts_as_adamw() -> None:
    phase_s = {"forward": 1.0, "lm_head": 2.0, "backward": 3.0, "muon": 4.0, "adamw": 5.0}

    times = profile_step.PhaseTimes.of(phase_s, step_s=16.5)

    assert times == profile_step.PhaseTimes(1.0, 2.0, 3.0, 4.0, 6.5)
    assert (times.batch_s, times.total_s) == (6.0, 16.5)


def test_a_model_that_cannot_be_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        profile_step.profile(["--depth=1", "--aspect-ratio=8", "--head-dim=8"])
    assert str(caught.value) == snapshot

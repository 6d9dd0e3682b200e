from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.train.resolve import (
    ModelSize,
    common_device_type,
    evaluations,
    resolve,
    resolve_schedule,
)

# Depth 4 of width 256, and depth 12 of width 768, vocabulary 32,768.
D4 = ModelSize(scaling=11_534_432, reference=110_101_776, flops_per_token=7.549819e7)
D12 = ModelSize(scaling=110_101_776, reference=110_101_776, flops_per_token=8e8)


def test_a_cpu_gets_a_small_model_and_a_gpu_nanochats() -> None:
    cpu, cuda = resolve(TrainConfig(), "cpu"), resolve(TrainConfig(), "cuda")

    assert (cpu.depth, cpu.head_dim, cpu.max_seq_len, cpu.window_pattern) == (4, 64, 512, "L")
    assert (cuda.depth, cuda.head_dim, cuda.max_seq_len) == (20, 128, 2048)
    assert (cuda.window_pattern, cuda.device_batch_size) == ("SSSL", 32)
    assert cpu.reasons["depth"] == "fits a cpu device"


def test_what_is_given_is_used_as_it_is_on_any_device() -> None:
    config = TrainConfig(depth=6, head_dim=32, max_seq_len=128, window_pattern="sl")

    for device_type in ("cpu", "cuda", "mps"):
        resolved = resolve(config, device_type)
        assert (resolved.depth, resolved.head_dim, resolved.max_seq_len) == (6, 32, 128)
        assert resolved.window_pattern == "SL"
        assert resolved.reasons["depth"] == "given"
        assert resolved.model_tag == "d6"


def test_nanochats_cpu_command_gets_what_it_says() -> None:
    config = TrainConfig(
        device_type="cpu",
        depth=4,
        max_seq_len=512,
        device_batch_size=1,
        total_batch_size=512,
        num_iterations=20,
    )

    horizon = resolve_schedule(resolve(config, "cpu"), D4)

    assert (horizon.total_batch_size, horizon.num_iterations) == (512, 20)
    assert horizon.reasons["num_iterations"] == "given"


def test_a_batch_that_the_default_row_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="512 or 1024"):
        resolve(TrainConfig(total_batch_size=1000), "cpu")


def test_a_model_narrower_than_its_gates_is_refused() -> None:
    with pytest.raises(UsageError, match="model 16 wide"):
        resolve(TrainConfig(depth=1, aspect_ratio=8, head_dim=16), "cpu")


def test_on_a_gpu_the_batch_grows_with_the_model() -> None:
    small = resolve_schedule(resolve(TrainConfig(depth=4), "cuda"), D4)
    reference = resolve_schedule(resolve(TrainConfig(depth=12), "cuda"), D12)

    assert reference.total_batch_size == 524_288
    # 524288 * (11534432 / 110101776)^0.383 = 220885, and the nearest power of two.
    assert small.total_batch_size == 262_144
    assert reference.num_iterations == 12 * D12.scaling // 524_288


def test_steps_come_first_then_flops_then_the_ratio() -> None:
    both = TrainConfig(num_iterations=7, target_flops=1e15, target_param_data_ratio=20)
    flops = TrainConfig(target_flops=1e15, target_param_data_ratio=20)
    ratio = TrainConfig(target_param_data_ratio=20)

    steps = [resolve_schedule(resolve(c, "cpu"), D4).num_iterations for c in (both, flops, ratio)]

    assert steps == [7, round(1e15 / (7.549819e7 * 4096)), 20 * D4.scaling // 4096]


def test_a_run_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="no length"):
        resolve_schedule(resolve(TrainConfig(target_param_data_ratio=-1), "cuda"), D12)
    with pytest.raises(UsageError, match="less than one step"):
        resolve_schedule(resolve(TrainConfig(target_flops=1.0), "cpu"), D4)


@given(
    steps=st.integers(1, 20_000),
    row=st.sampled_from([128, 512, 2048]),
    rows=st.integers(1, 64),
)
def test_evaluation_takes_at_most_a_tenth_of_the_tokens_or_one_row(
    steps: int, row: int, rows: int
) -> None:
    config = TrainConfig(num_iterations=steps, max_seq_len=row, total_batch_size=row * rows)

    horizon = resolve_schedule(resolve(config, "cpu"), D4)

    assert horizon.eval_every is not None
    assert horizon.eval_tokens % row == 0
    times, tokens = evaluations(steps, horizon.eval_every), horizon.eval_tokens
    within = times * tokens <= 0.1 * steps * row * rows
    assert within or (times == 1 and tokens == row)


def test_evaluation_and_saving_can_be_switched_off() -> None:
    horizon = resolve_schedule(resolve(TrainConfig(eval_every=-1, save_every=-1), "cpu"), D4)

    assert horizon.eval_every is None
    assert horizon.save_every is None


@pytest.mark.parametrize(
    ("devices", "common"),
    [
        (["cuda", "cuda"], "cuda"),
        (["mps"], "mps"),
        (["cpu", "mps"], "cpu"),
        (["cuda", "cpu"], "cpu"),
        (["cuda", "mps"], "cpu"),
    ],
)
def test_ranks_on_unlike_devices_take_what_fits_all_of_them(
    devices: list[str], common: str
) -> None:
    assert common_device_type(devices) == common

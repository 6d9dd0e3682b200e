from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.train.resolve import (
    common_device_type,
    evaluations,
    resolve,
    resolve_schedule,
)

VOCAB = 32_768


def test_a_cpu_gets_a_small_model_and_a_gpu_nanochats() -> None:
    cpu, cuda = resolve(TrainConfig(), "cpu"), resolve(TrainConfig(), "cuda")

    assert (cpu.depth, cpu.head_dim, cpu.max_seq_len, cpu.window_pattern) == (4, 64, 512, "L")
    assert (cuda.head_dim, cuda.max_seq_len, cuda.window_pattern) == (128, 2048, "SSSL")
    assert cpu.reasons["depth"] == "fits a cpu device"


def test_a_gpu_whose_kernels_have_no_windows_gets_none_unless_they_are_asked_for() -> None:
    old, asked = TrainConfig(), TrainConfig(window_pattern="SL")

    plain, given = (resolve(each, "cuda", no_windows="too old a GPU") for each in (old, asked))

    assert (plain.window_pattern, plain.reasons["window_pattern"]) == ("L", "too old a GPU")
    assert (given.window_pattern, given.reasons["window_pattern"]) == ("SL", "given")
    assert resolve(old, "cpu", no_windows="too old a GPU").window_pattern == "L"


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

    schedule = resolve_schedule(resolve(config, "cpu"), VOCAB)

    assert (schedule.total_batch_size, schedule.num_iterations) == (512, 20)
    assert schedule.reasons["num_iterations"] == "given"


def test_a_batch_that_the_default_row_does_not_divide_is_refused(
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(TrainConfig(total_batch_size=1000), "cpu")
    assert str(caught.value) == snapshot


def test_a_model_narrower_than_its_gates_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(TrainConfig(depth=1, aspect_ratio=8, head_dim=16), "cpu")
    assert str(caught.value) == snapshot


def test_on_a_gpu_the_batch_grows_with_the_model() -> None:
    small = resolve_schedule(resolve(TrainConfig(depth=4), "cuda"), VOCAB)
    reference = resolve_schedule(resolve(TrainConfig(depth=12), "cuda"), VOCAB)

    assert reference.total_batch_size == 524_288
    # 524288 * (11534384 / 110101680)^0.383 = 220885, and the nearest power of two.
    assert small.total_batch_size == 262_144
    assert reference.num_iterations == 12 * 110_101_680 // 524_288


def test_steps_come_first_then_flops_then_the_ratio() -> None:
    both = TrainConfig(num_iterations=7, target_flops=1e15, target_param_data_ratio=20)
    flops = TrainConfig(target_flops=1e15, target_param_data_ratio=20)
    ratio = TrainConfig(target_param_data_ratio=20)

    steps = [
        resolve_schedule(resolve(c, "cpu"), VOCAB).num_iterations for c in (both, flops, ratio)
    ]

    assert steps == [7, round(1e15 / (7.549819e7 * 4096)), 20 * 11_534_432 // 4096]


def test_a_run_without_a_length_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_schedule(resolve(TrainConfig(target_param_data_ratio=-1), "cuda"), VOCAB)
    assert str(caught.value) == snapshot
    with pytest.raises(UsageError) as caught:
        resolve_schedule(resolve(TrainConfig(target_flops=1.0), "cpu"), VOCAB)
    assert str(caught.value) == snapshot


@given(
    steps=st.integers(1, 20_000),
    row=st.sampled_from([128, 512, 2048]),
    rows=st.integers(1, 64),
)
def test_evaluation_takes_at_most_a_tenth_of_the_tokens_or_one_row(
    steps: int, row: int, rows: int
) -> None:
    config = TrainConfig(num_iterations=steps, max_seq_len=row, total_batch_size=row * rows)

    schedule = resolve_schedule(resolve(config, "cpu"), VOCAB)

    assert schedule.eval_every is not None
    assert schedule.eval_tokens % row == 0
    times, tokens = evaluations(steps, schedule.eval_every), schedule.eval_tokens
    within = times * tokens <= 0.1 * steps * row * rows
    assert within or (times == 1 and tokens == row)


def test_evaluation_and_saving_can_be_switched_off() -> None:
    schedule = resolve_schedule(resolve(TrainConfig(eval_every=-1, save_every=-1), "cpu"), VOCAB)

    assert schedule.eval_every is None
    assert schedule.save_every is None


@pytest.mark.parametrize(
    ("devices", "common"),
    [
        (["cuda", "cuda"], "cuda"),
        (["mps"], "mps"),
        (["cpu", "mps"], "cpu"),
        (["cuda", "cpu"], "cuda"),
        (["cuda", "mps"], "cuda"),
    ],
)
def test_ranks_on_unlike_devices_take_what_suits_those_that_do_the_work(
    devices: list[str], common: str
) -> None:
    assert common_device_type(devices) == common

"""`--for`: steps by time, fixed before the first one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from yoked.console import StageProgress
from yoked.errors import UsageError
from yoked.train import duration
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.progress import NullProgress
from yoked.train.decisions.working import Working
from yoked.train.duration import Pace, fit_duration, steps_within
from yoked.train.outlook import steps_in_all
from yoked.train.resolve import TrainSchedule, resolve_schedule
from yoked.train.resume import build_trainer
from yoked.train.setup import RunSetup, setup_fleet, setup_run


def schedule(steps: int, eval_every: int | None = None) -> TrainSchedule:
    return TrainSchedule(1000, steps, eval_every, 2000, None, {})


def test_as_many_steps_fit_as_the_time_has_room_for() -> None:
    steps = steps_within(1000.0, 2.0, schedule, "1000s")

    assert 480 <= steps <= 490, "with a reserve"


def test_evaluations_take_their_part_of_the_time() -> None:
    steps = steps_within(1000.0, 2.0, lambda steps: schedule(steps, 10), "1000s")

    # Each 10 steps there is an evaluation that takes as long as one.
    assert 430 <= steps <= 446
    assert 2.0 * steps_in_all(schedule(steps, 10)) <= 1000


def test_a_time_without_room_for_a_step_is_an_error(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        steps_within(1.5, 2.0, schedule, "3s")

    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "flags",
    [
        {"duration": "soon"},
        {"duration": "0s"},
        {"duration": "8h", "num_iterations": 5},
        {"duration": "8h", "target_flops": 1e15},
        {"duration": "8h", "resume": True},
        {"duration": "8h", "resume_from_step": 5},
    ],
)
def test_what_for_cannot_mean_is_an_error(
    flags: dict[str, object], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig(**flags)  # type: ignore[arg-type]

    assert str(caught.value) == snapshot


def test_a_run_goes_on_without_measuring_again() -> None:
    assert TrainConfig(duration="8h").going_on().duration is None


@pytest.fixture
def setup(tmp_path: Path) -> RunSetup:
    (tmp_path / "farm.txt").write_text("the oxen pull the plough\n" * 500)
    config = TrainConfig(
        data=str(tmp_path / "farm.txt"),
        runs_dir=tmp_path / "runs",
        depth=2,
        head_dim=32,
        max_seq_len=32,
        vocab_size=300,
        total_batch_size=128,
        dtype="float32",
        matmul="mkl",
        attention="sdpa",
        compile="off",
        threads="1",
        duration="1h",
    )
    fleet = setup_fleet(config, RankInfo(0, 0, 1, 1), NullProgress())
    return setup_run(fleet, Communicator(), Working((0,)))


def test_steps_are_fixed_by_steps_that_were_taken(
    setup: RunSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duration, "MEASURE_S", 0.0)
    began_s = duration.time.monotonic()

    fixed, step_s = fit_duration(setup, began_s, StageProgress(Console(quiet=True)))

    steps = fixed.schedule.num_iterations
    assert step_s is not None
    assert step_s * steps_in_all(fixed.schedule) == pytest.approx(3600, rel=0.1)
    assert (fixed.config.num_iterations, fixed.config.duration) == (steps, None)
    assert fixed.resolved.config is fixed.config
    assert fixed.schedule.reasons["num_iterations"].startswith("--for 1h, at ")


def test_without_for_nothing_is_measured(setup: RunSetup) -> None:
    config = dataclasses.replace(setup.config, duration=None)
    plain = dataclasses.replace(setup, config=config)

    assert fit_duration(plain, 0.0, StageProgress(Console(quiet=True))) == (plain, None)


def test_a_run_that_keeps_its_pace_says_nothing() -> None:
    pace = Pace(1.0, 100, "8h")

    assert not any(pace.step(1.0 if step % 7 else 9.0) for step in range(100))


def test_a_run_that_slows_down_says_so_once_until_it_is_far_worse(
    snapshot: SnapshotAssertion,
) -> None:
    pace = Pace(1.0, 100, "8h")

    told = [pace.step(took) for took in [1.0] * 30 + [1.4] * 50 + [3.0] * 50]

    assert [note for note in told if note] == snapshot


def test_what_is_learned_is_that_of_a_run_of_so_many_steps(
    setup: RunSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duration, "MEASURE_S", 0.0)
    quiet = StageProgress(Console(quiet=True))

    fixed, _ = fit_duration(setup, duration.time.monotonic(), quiet)
    config = dataclasses.replace(fixed.config, duration=None)
    resolved = dataclasses.replace(setup.resolved, config=config)
    plain = dataclasses.replace(
        setup,
        config=config,
        resolved=resolved,
        schedule=resolve_schedule(resolved, setup.data.info.vocab_size),
    )

    assert losses(fixed) == losses(plain)


def losses(of: RunSetup) -> list[float]:
    trainer = build_trainer(of)
    return [trainer.step(step).nats for step in range(4)]

"""What a run will take, and what is told of it at the start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.memory import checkpoint_bytes
from yoked.costmodel.model_shape import count_parameters
from yoked.errors import YokedError
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.progress import NullProgress
from yoked.train.decisions.working import Working
from yoked.train.outlook import (
    disk_remark,
    epoch_remark,
    foresee,
    require_disk,
    start_lines,
)
from yoked.train.setup import RunSetup, setup_fleet, setup_run

MB = 1_000_000
TINY = TrainConfig(
    depth=2,
    head_dim=32,
    max_seq_len=32,
    vocab_size=300,
    total_batch_size=128,
    num_iterations=200,
    eval_tokens=640,
    eval_every=50,
    dtype="float32",
    matmul="mkl",
    attention="sdpa",
    compile="off",
    threads="1",
)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> RunSetup:
    folder = tmp_path_factory.mktemp("outlook")
    (folder / "farm.txt").write_text("the oxen pull the plough\n" * 500)
    config = dataclasses.replace(TINY, data=str(folder / "farm.txt"), runs_dir=folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOKED_CACHE", str(folder / "cache"))
        fleet = setup_fleet(config, RankInfo(0, 0, 1, 1), NullProgress())
        return setup_run(fleet, Communicator(), Working((0,)))


def test_time_grows_with_steps_and_counts_evaluations(setup: RunSetup) -> None:
    outlook = foresee(setup, step_s=2.0)

    # 4 evaluations of 5 steps' tokens each, at half the price of training.
    assert outlook.time_s == pytest.approx(2.0 * (200 + 4 * 2.5))


def test_a_step_is_foreseen_from_what_the_products_took(setup: RunSetup) -> None:
    measured_s = setup.hosts[0]["compute"]["product_s_per_token"]

    outlook = foresee(setup)

    assert outlook.step_s is not None
    assert outlook.step_s > 128 * measured_s


def test_nothing_is_foreseen_of_what_was_not_measured(setup: RunSetup) -> None:
    host = setup.hosts[0]
    unknown = {**host, "compute": {**host["compute"], "product_s_per_token": None}}

    outlook = foresee(dataclasses.replace(setup, hosts=[unknown]))

    assert outlook.step_s is None
    assert outlook.time_s is None
    assert len(outlook.memory) == 1


def test_epochs_are_tokens_of_the_run_over_tokens_of_the_text(setup: RunSetup) -> None:
    outlook = foresee(setup)

    assert outlook.tokens == 200 * 128
    assert outlook.epoch_tokens == 32 * setup.data.train.num_rows
    assert outlook.epochs == outlook.tokens / outlook.epoch_tokens


@pytest.mark.parametrize("epochs", [0.1, 1.0, 4.0])
def test_a_text_that_is_read_few_times_is_nothing_to_remark(epochs: float) -> None:
    assert epoch_remark(epochs, "farm") is None


def test_a_text_that_is_read_often_is_remarked_on(snapshot: SnapshotAssertion) -> None:
    assert [epoch_remark(epochs, "farm") for epochs in (4.3, 1234.0)] == snapshot


@pytest.mark.parametrize(
    ("save_every", "eval_every", "count"),
    # The last three, the best, and one that is being written before an old one goes.
    [(10, 50, 5), (10, None, 4), (None, 50, 1), (500, None, 1), (500, 100, 2)],
)
def test_the_disk_holds_the_kept_checkpoints_and_one_that_takes_the_place_of_another(
    setup: RunSetup, save_every: int | None, eval_every: int | None, count: int
) -> None:
    one = checkpoint_bytes(count_parameters(setup.model_config))
    schedule = dataclasses.replace(setup.schedule, save_every=save_every, eval_every=eval_every)

    assert foresee(dataclasses.replace(setup, schedule=schedule)).disk_bytes == count * one


def test_a_disk_without_room_for_one_checkpoint_is_an_error(
    setup: RunSetup, snapshot: SnapshotAssertion
) -> None:
    outlook = foresee(setup)
    full = dataclasses.replace(outlook, checkpoint_bytes=500_000_000, free_bytes=120_000_000)
    named = dataclasses.replace(
        setup, config=dataclasses.replace(setup.config, runs_dir=Path("runs"))
    )

    require_disk(outlook, setup)
    with pytest.raises(YokedError) as caught:
        require_disk(full, named)
    assert caught.value.code == "disk-full-here"
    assert str(caught.value) == snapshot
    on_a_host = dataclasses.replace(setup.config, runs_dir=Path("../../runs"))
    with pytest.raises(YokedError) as caught:
        require_disk(full, dataclasses.replace(setup, config=on_a_host))
    assert ".." not in str(caught.value)


@pytest.mark.parametrize(
    ("free", "there", "advice"),
    [
        (500, 0, None),
        # It goes on where an earlier start has left as many as are kept.
        (100, 400, None),
        (300, 0, "Free 200 MB, or give --keep-last 1"),
        (150, 0, "Free 350 MB"),
    ],
)
def test_a_disk_that_takes_the_first_checkpoints_and_not_all_is_remarked_on_at_the_start(
    setup: RunSetup, free: int, there: int, advice: str | None
) -> None:
    # Three that are kept, the best, and one that is being written.
    sizes = {"checkpoint_bytes": 100 * MB, "disk_bytes": 500 * MB, "free_bytes": free * MB}
    outlook = dataclasses.replace(foresee(setup), **sizes)

    remark = disk_remark(outlook, 3, there * MB)

    assert (remark is None) == (advice is None)
    assert advice is None or (remark or "").endswith(advice)


def test_the_start_is_told_in_three_lines_and_a_remark(
    setup: RunSetup, snapshot: SnapshotAssertion
) -> None:
    outlook = dataclasses.replace(foresee(setup), epochs=4.3, time_s=4000.0, remark=None)
    remarked = dataclasses.replace(outlook, remark=epoch_remark(4.3, "farm"))

    lines = start_lines(setup, remarked)

    assert start_lines(setup, outlook) == lines[:3]
    assert all(len(line) <= 80 for line in lines[:3]), lines
    assert lines == snapshot

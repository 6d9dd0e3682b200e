"""`python -m yoked.train`: what one rank does with its command line and its end."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import DataError, UsageError
from yoked.train.__main__ import main, parse
from yoked.train.config import TrainConfig


def succeed(config: TrainConfig) -> dict[str, Any]:
    return {"state": "finished", "depth": config.depth}


def stop(config: TrainConfig) -> dict[str, Any]:
    return {"state": "interrupted", "run": "r", "dir": "runs/r", "steps": 7}


def fail(config: TrainConfig) -> dict[str, Any]:
    raise DataError("no rows", fix="prepare some")


def crash(config: TrainConfig) -> dict[str, Any]:
    raise ZeroDivisionError("oops")


SEED_COMMAND = (
    "--device-type=cpu --depth=4 --max-seq-len=512 --device-batch-size=1 "
    "--total-batch-size=512 --num-iterations=20"
)


@pytest.mark.parametrize("argv", [SEED_COMMAND, "-- " + SEED_COMMAND.replace("=", " ")])
def test_nanochats_commands_are_understood_with_and_without_dashes(argv: str) -> None:
    config = parse(argv.split())

    assert config == TrainConfig(
        device_type="cpu",
        depth=4,
        max_seq_len=512,
        device_batch_size=1,
        total_batch_size=512,
        num_iterations=20,
    )


def test_every_flag_of_nanochat_is_known() -> None:
    argv = (
        "--run=dummy --device-type= --depth=4 --aspect-ratio=64 --head-dim=64 --max-seq-len=512 "
        "--window-pattern=SSSL --num-iterations=-1 --target-flops=-1.0 "
        "--target-param-data-ratio=12 --device-batch-size=32 --total-batch-size=-1 "
        "--embedding-lr=0.3 --unembedding-lr=0.008 --weight-decay=0.28 --matrix-lr=0.02 "
        "--scalar-lr=0.5 --warmup-steps=40 --warmdown-ratio=0.65 --final-lr-frac=0.05 "
        "--resume-from-step=-1 --eval-every=250 --eval-tokens=512 --core-metric-every=-1 "
        "--core-metric-max-per-task=500 --sample-every=-1 --save-every=-1 --model-tag=x "
        "--fp8-recipe=tensorwise"
    )

    config = parse(argv.split())

    assert (config.run, config.device_type, config.num_iterations) == ("dummy", "auto", None)


def test_an_unknown_flag_gets_the_nearest(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--dpth", "4"])
    assert str(caught.value) == snapshot


def test_a_configuration_file_says_it_all(tmp_path: Path) -> None:
    config = TrainConfig(depth=3, shares="2:1")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))

    assert parse(["--config-file", str(file)]) == config


def launched(folder: Path, **flags: Any) -> tuple[TrainConfig, list[str]]:
    """A launch's configuration, and the arguments of its ranks from the second attempt on."""
    config = TrainConfig(depth=3, run="night", runs_dir=folder / "runs", **flags)
    file = folder / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    return config, ["--config-file", str(file), "--resume"]


def write_run(folder: Path) -> None:
    (folder / "runs/night").mkdir(parents=True)
    (folder / "runs/night/run.json").write_text("{}")


@pytest.mark.parametrize(
    "begins", [{}, {"resume": True}, {"resume_from_step": 50}, {"start_from": Path("from")}]
)
def test_a_launcher_that_starts_again_goes_on_with_the_run_wherever_it_began(
    tmp_path: Path, begins: dict[str, Any]
) -> None:
    config, argv = launched(tmp_path, **begins)
    write_run(tmp_path)

    again = parse(argv)

    assert again == dataclasses.replace(config, resume=True, resume_from_step=None, start_from=None)


@pytest.mark.parametrize("begins", [{}, {"resume_from_step": 50}, {"start_from": Path("from")}])
@pytest.mark.parametrize("older", [False, True])
def test_a_launcher_that_starts_again_before_it_has_begun_the_run_begins_it(
    tmp_path: Path, begins: dict[str, Any], older: bool
) -> None:
    if older:
        write_run(tmp_path)
        os.utime(tmp_path / "runs/night/run.json", (0, 0))
    config, argv = launched(tmp_path, **begins)

    assert parse(argv) == config


def test_a_rank_hands_its_result_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))

    assert main(["--depth=4"], train=succeed) == 0

    assert json.loads((tmp_path / "result.json").read_text()) == {"state": "finished", "depth": 4}


def test_a_rank_hands_its_error_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))

    statuses = [main([], train=fail), main([], train=crash)]

    error = json.loads((tmp_path / "error.0.json").read_text())
    assert statuses == [1, 3]
    assert error["kind"] == "ZeroDivisionError"
    assert "crash(" in error["traceback"] or "in crash" in error["traceback"]
    assert capsys.readouterr().err == ""


def test_the_line_by_which_an_interrupted_run_goes_on_can_be_pasted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped = {"state": "interrupted", "steps": 5, "dir": "my runs/night"}

    assert main([], train=lambda _: stopped) == 130

    said = capsys.readouterr().err.splitlines()[-1]
    flags = shlex.split(said)[shlex.split(said).index("--") + 1 :]
    assert parse(flags) == TrainConfig(resume=True, run="night", runs_dir=Path("my runs"))


def test_a_rank_that_can_leave_no_word_of_its_error_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path / "gone"))

    assert main([], train=fail) == 1

    assert "no rows\nfix: prepare some" in capsys.readouterr().err


def test_under_plain_torchrun_each_rank_names_itself_but_usage_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert main([], train=fail) == 1
        assert main(["--ranks=3"], train=succeed) == 2

    said = capsys.readouterr().err
    assert said.count("rank 0: no rows\nfix: prepare some") == 1
    assert said.count("rank 1: no rows") == 1
    assert said.count("torchrun started 2") == 1


def test_under_plain_torchrun_an_error_of_another_rank_is_said_to_be_its(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hear(config: TrainConfig) -> dict[str, Any]:
        problem = DataError("no rows")
        problem.of_ranks = (1,)
        raise problem

    monkeypatch.setenv("RANK", "0")

    main([], train=hear)

    assert capsys.readouterr().err == "rank 1: no rows\n"


def test_an_interrupted_rank_ends_with_130_unless_the_launcher_reads_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    assert main([], train=stop) == 130
    assert capsys.readouterr().err == snapshot
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))
    assert main([], train=stop) == 0

"""One rank on a system without /proc: nothing supervises it, and its end is told all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.schemas import conforms

from yoked.errors import CheckpointError, LossNotFiniteError
from yoked.launch.filestore import run_in_process
from yoked.launch.here import LocalRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRun:
    # What is set is taken back.
    monkeypatch.setenv("YOKED_LAUNCH_ID", "before")
    (tmp_path / "night").mkdir()
    return LocalRun("night", tmp_path / "night", 1, {})


def begin(run: LocalRun) -> None:
    assert run.run_dir is not None
    about = {"launch_id": os.environ["YOKED_LAUNCH_ID"]}
    (run.run_dir / "run.json").write_text(json.dumps(about))


def test_its_result_is_handed_on(run: LocalRun) -> None:
    assert run_in_process(run, lambda: {"state": "finished"}) == {"state": "finished"}


def test_its_error_is_raised_with_the_verdict_that_its_folder_has(run: LocalRun) -> None:
    def act() -> dict[str, Any]:
        begin(run)
        raise LossNotFiniteError("the loss is not finite in step 5", fix="look")

    with pytest.raises(LossNotFiniteError) as caught:
        run_in_process(run, act)

    assert run.run_dir is not None
    told = conforms("diagnose", json.loads((run.run_dir / "result.json").read_text()))
    assert told == caught.value.verdict
    (fault,) = told["faults"]
    assert (fault["cause"], fault["rank"]) == ("loss-not-finite", 0)
    assert fault["fix"] == ["look"]


def test_a_bug_is_the_result_of_the_run_too(run: LocalRun) -> None:
    def act() -> dict[str, Any]:
        begin(run)
        raise ZeroDivisionError("one by none")

    with pytest.raises(ZeroDivisionError):
        run_in_process(run, act)

    assert run.run_dir is not None
    (fault,) = json.loads((run.run_dir / "result.json").read_text())["faults"]
    assert fault["cause"] == "exception"
    assert "one by none" in fault["evidence"][0]


def test_an_error_before_the_run_has_begun_leaves_what_there_was(run: LocalRun) -> None:
    def act() -> dict[str, Any]:
        raise CheckpointError("there is none")

    with pytest.raises(CheckpointError):
        run_in_process(run, act)

    assert run.run_dir is not None
    assert not list(run.run_dir.iterdir())

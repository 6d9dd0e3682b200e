"""What a host's part of a launch waits for, as its file has it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.diagnosis.made_up import rank, recorded
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.diagnosis.vitals import Frame, Recorded, Vitals
from yoked.launch.bootstrap import stage
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.stage import Stage

TORCH = Frame("/venv/lib/python3.12/site-packages/torch/__init__.py", 3, "<module>")
IMPORT = Frame("<frozen importlib._bootstrap>", 1, "_find_and_load")
MEETS = Frame("/torch/distributed/distributed_c10d.py", 3, "init_process_group")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(stage, "_OFTEN_S", 0.0)
    return made_up_job(tmp_path)


def read(job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((job.folder / "stage.json").read_text())
    return content


def unborn(*frames: Frame, **changes: Any) -> Recorded:
    return replace(recorded(), steps=0, phase=None, awaits=None, frames=frames, **changes)


def test_launchers_that_have_not_come_are_named(job: Job) -> None:
    Stage(job).gathers(["beta"])

    assert (read(job)["hosts"], read(job)["ranks"]) == (["beta"], [])


@pytest.mark.parametrize(
    ("seen", "doing"),
    [
        (None, "starting"),
        (unborn(IMPORT), "importing"),
        (unborn(IMPORT, TORCH), "importing torch"),
        (unborn(MEETS), "meeting"),
        (unborn(Frame("/torch/_inductor/x.py", 1, "f")), "compiling"),
        (unborn(Frame("train.py", 1, "f")), "training"),
    ],
)
def test_a_rank_without_a_step_is_told_by_where_it_stands(
    job: Job, seen: Recorded | None, doing: str
) -> None:
    Stage(job).runs(Vitals(0, 1, (rank(0, recorded=seen),)))

    assert [each["doing"] for each in read(job)["ranks"]] == [doing]


def test_a_rank_that_meets_is_known_by_its_mark(job: Job) -> None:
    job.launch_dir(0).mkdir(parents=True)
    job.meeting_mark(0, 0).touch()

    Stage(job).runs(Vitals(0, 1, (rank(0, recorded=unborn(Frame("x.py", 1, "f"))),)))

    assert read(job)["ranks"][0]["doing"] == "meeting"


def test_since_when_counts_from_the_first_look_that_saw_it(job: Job) -> None:
    told = Stage(job)

    told.runs(Vitals(0, 1, (rank(0, recorded=unborn(IMPORT)),)))
    first = read(job)["ranks"][0]["since_s"]
    told.runs(Vitals(0, 2, (rank(0, recorded=unborn(IMPORT)), rank(1, recorded=None))))

    assert read(job)["ranks"][0]["since_s"] == first
    assert [each["doing"] for each in read(job)["ranks"]] == ["importing", "starting"]


def test_once_all_ranks_took_a_step_it_has_begun(job: Job) -> None:
    Stage(job).runs(Vitals(0, 1, (rank(0, recorded=replace(recorded(), steps=1)),)))

    assert (read(job)["begun"], read(job)["ranks"]) == (True, [])

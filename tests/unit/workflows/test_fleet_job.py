"""A job on a fleet, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.agent.job_acts import SLEEPER, launch, no_job_left

from yoked.agent.jobfolder import all_jobs
from yoked.errors import YokedError
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.program import Program
from yoked.launch.start import JobRequest, Started
from yoked.records.examination import Need
from yoked.remote.transport import connect_here
from yoked.workflows import fleet_job
from yoked.workflows.fleet_job import run_job


def test_hosts_that_have_another_run_get_no_second_one_unless_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    view: Any = SimpleNamespace(live=None, note=lambda line: None)
    request = JobRequest("second", Program("script", "train.py", (), tmp_path))
    fleet = Fleet("here", (Host(HERE),), tmp_path / "yoked.toml")
    asked: list[str] = []

    def refuses(lines: Any) -> bool:
        asked.extend(lines)
        return False

    with no_job_left(), connect_here(HERE) as agent:
        launch(agent, tmp_path / "state", SLEEPER, run="first", by="ada@laptop")
        with pytest.raises(YokedError) as caught:
            run_job(request, fleet, view, detach=True, doctor=False, need=Need(), share=refuses)

        assert caught.value.code == "other-run"
        assert [line.split(" has been")[0] for line in asked] == ["run first of ada@laptop"]
        assert [job.run for job in all_jobs()] == ["first"]


@pytest.mark.parametrize("detach", [False, True])
def test_ctrl_c_between_the_start_and_the_first_look_says_that_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detach: bool
) -> None:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    view: Any = SimpleNamespace(live=None, note=said.append)
    request = JobRequest("night", Program("script", "train.py", (), tmp_path))
    fleet = Fleet("here", (Host(HERE),), tmp_path / "yoked.toml")

    class Interrupted(dict[str, float]):
        def __setitem__(self, name: str, took_s: float) -> None:
            raise KeyboardInterrupt

    started = Started("night", "0123456789ab", (), Interrupted())
    monkeypatch.setattr(fleet_job, "start_job", lambda *_, **__: started)

    with pytest.raises(KeyboardInterrupt):
        run_job(request, fleet, view, detach=detach, doctor=False, need=Need())

    assert "run night goes on: `yoked attach night`" in said[-1]

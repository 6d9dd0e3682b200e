"""A run on this machine as a job, with ranks that only pretend to train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms
from tests.unit.agent.job_acts import no_job_left

from yoked.agent.jobfolder import JobFolder, all_jobs, jobs_root
from yoked.cli.output import Output
from yoked.errors import DataError, LossNotFiniteError, UsageError, WeightsApartError, YokedError
from yoked.launch.here import LocalRun, RankCrash, run_here
from yoked.train.config import TrainConfig

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 60.0
# The command, with ranks that behave as FAKE says.
WITH_FAKE_RANKS = (
    "import dataclasses, sys; "
    "from yoked.cli.main import main; from yoked.launch import here; "
    "start = here.run_here; "
    "here.run_here = lambda run, *args, **more: "
    "start(dataclasses.replace(run, module='fake_rank'), *args, **more); "
    "sys.exit(main(['train', *sys.argv[1:]]))"
)


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{SOURCE}")
    monkeypatch.chdir(tmp_path)
    with no_job_left():
        yield


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    def start(behaviour: str) -> dict[str, Any]:
        monkeypatch.setenv("FAKE", behaviour)
        config = TrainConfig(run="r", ranks=2)
        found = run_here(
            LocalRun("r", tmp_path / "runs" / "r", 2, config.to_dict(), module="fake_rank"),
            Output(json_mode=True),
        )
        assert found is not None
        return found

    return start


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)


def train(behaviour: str, *flags: str, run: str = "r") -> subprocess.Popen[str]:
    """`yoked train` with pretended ranks, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", WITH_FAKE_RANKS, f"--run={run}", "--ranks=2", "--json", *flags],
        env={**os.environ, "FAKE": behaviour},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def followed(behaviour: str) -> subprocess.Popen[str]:
    """The same; its ranks are up when this returns."""
    follower = train(behaviour)
    try:
        until(lambda: len(rank_pids()) == 2)
    except AssertionError:
        follower.kill()
        raise AssertionError(follower.communicate()) from None
    return follower


def rank_pids() -> list[int]:
    files = [Path("runs", "r", f"pid.{rank}") for rank in (0, 1)]
    return [int(file.read_text()) for file in files if file.is_file() and file.read_text()]


def test_the_result_of_rank_0_comes_back_and_each_rank_has_its_log(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    result = launch("finish")

    (job,) = all_jobs()
    assert (result["run"], result["steps"]) == ("r", 3)
    assert (job.run, job.state) == ("r", "finished")
    assert (job.logs / "0.0.out").read_text() == "rank 0 says hello\n"
    assert (job.logs / "1.0.out").read_text() == "rank 1 says hello\n"


def test_the_rank_that_failed_first_speaks_for_itself(
    launch: Callable[[str], dict[str, Any]], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(DataError) as caught:
        launch("one_cannot_read")

    assert caught.value.what == "rank 1: rows.bin is gone"
    assert caught.value.fix == ("prepare it again",)
    assert b"ChildFailedError" not in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    ("behaviour", "kind", "what"),
    [
        (
            "one_has_no_finite_loss",
            LossNotFiniteError,
            "rank 1: the loss is not a finite number",
        ),
        ("nobody_knows_whose_weights", WeightsApartError, "ranks 0 and 1 hold unlike weights"),
    ],
)
def test_what_all_ranks_raise_names_those_to_blame(
    launch: Callable[[str], dict[str, Any]],
    behaviour: str,
    kind: type[YokedError],
    what: str,
) -> None:
    with pytest.raises(kind) as caught:
        launch(behaviour)

    assert caught.value.what == what


def test_an_error_of_all_ranks_is_said_once_of_the_run(
    launch: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        launch("all_misused")

    assert caught.value.what == "no such data"
    assert not (tmp_path / "runs").exists(), "a run that never began leaves no folder"
    assert all_jobs() == [], "and no job"


def test_a_bug_in_a_rank_comes_with_its_traceback(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    with pytest.raises(RankCrash) as caught:
        launch("one_has_a_bug")
    assert "rank 1 " in str(caught.value)
    assert "one_has_a_bug" in str(caught.value)
    assert "one by none" in str(caught.value)


def test_a_killed_rank_is_named_with_its_signal_and_last_words(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    with pytest.raises(YokedError) as caught:
        launch("one_is_killed")

    assert caught.value.what.startswith("rank 1 ")
    assert "SIGKILL" in caught.value.what
    assert "allocating too much" in caught.value.what
    assert not any("--resume" in line for line in caught.value.fix), "there is nothing to resume"


def test_a_run_that_failed_ends_with_its_verdict_on_the_screen_and_as_its_result() -> None:
    failed = train("begins_and_is_killed")
    stdout, stderr = failed.communicate(timeout=DEADLINE_S)

    told = json.loads(stdout)
    error = told.pop("error")
    result = json.loads(Path("runs", "r", "result.json").read_text())
    assert failed.returncode == 1, stderr
    assert error["what"].startswith("rank 1 was killed by SIGKILL")
    assert error["fix"][0].startswith("yoked train --resume --run r")
    assert result == told == conforms("diagnose", result)
    assert (result["faults"][0]["cause"], result["faults"][0]["rank"]) == ("rank-killed", 1)
    live = {"shares": None, "busy": [], "warnings": []}
    assert yoked("diagnose", "r", "--json") == {**told, **live}


def test_a_resume_that_cannot_begin_leaves_what_the_run_came_to() -> None:
    train("begins_and_is_killed").communicate(timeout=DEADLINE_S)
    before = Path("runs", "r", "result.json").read_text()

    again = train("all_misused", "--resume")
    stdout, _ = again.communicate(timeout=DEADLINE_S)

    assert json.loads(stdout)["error"]["what"] == "no such data"
    assert Path("runs", "r", "result.json").read_text() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_every_rank_save_and_ends_with_130(number: int) -> None:
    follower = followed("wait_for_interrupt")

    follower.send_signal(number)
    stdout, stderr = follower.communicate(timeout=DEADLINE_S)

    assert follower.returncode == 130
    assert "note: it saves and stops; Ctrl-C again ends it without saving" in stderr
    assert json.loads(stdout)["state"] == "interrupted"
    assert [Path("runs", "r", f"saved.{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


def test_a_third_interrupt_kills_ranks_that_do_not_listen() -> None:
    follower = followed("ignore_everything")
    pids = rank_pids()

    for _ in range(3):
        follower.send_signal(signal.SIGINT)
        time.sleep(0.3)
    stdout, _ = follower.communicate(timeout=DEADLINE_S)

    assert follower.returncode == 130
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_run_outlives_the_command_that_follows_it_and_can_be_stopped() -> None:
    follower = followed("wait_for_interrupt")

    follower.kill()
    follower.communicate()
    goes_on = JobFolder(jobs_root() / "r").state
    stopped = yoked("stop", "r", "--json")

    assert goes_on == "running"
    assert stopped["state"] == "interrupted"
    assert [Path("runs", "r", f"saved.{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


def yoked(*words: str) -> dict[str, Any]:
    command = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", command, *words]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def test_a_detached_run_goes_on_and_its_name_is_not_to_be_had_twice(
    snapshot: SnapshotAssertion,
) -> None:
    detached = train("wait_for_interrupt", "--detach")
    stdout, stderr = detached.communicate(timeout=DEADLINE_S)
    again = train("finish")
    refused, _ = again.communicate(timeout=DEADLINE_S)

    assert (detached.returncode, json.loads(stdout)["state"]) == (0, "running"), stderr
    assert again.returncode == 2
    assert json.loads(refused)["error"]["what"] == snapshot


def test_a_second_run_starts_beside_another_only_if_that_is_meant() -> None:
    first = followed("wait_for_interrupt")

    refused, _ = train("finish", run="second").communicate(timeout=DEADLINE_S)
    beside = train("finish", "--beside", run="second")
    meant, _ = beside.communicate(timeout=DEADLINE_S)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=DEADLINE_S)

    error = json.loads(refused)["error"]
    assert error["code"] == "other-run"
    assert error["what"].startswith("run r of ")
    assert error["fix"][0].startswith("yoked stop r ")
    assert json.loads(meant)["state"] == "finished"


def test_an_old_job_of_a_run_whose_folder_was_removed_is_in_nobodys_way(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    launch("finish")
    launch("finish")

    runs = yoked("runs", "--json")["runs"]

    assert sorted(job.run for job in all_jobs()) == ["r", "r.2"]
    assert [(run["run"], run["job"], run["state"]) for run in runs] == [("r", "r.2", "finished")]
    assert yoked("clean", "r", "--yes", "--json")["removed"]
    assert all_jobs() == [], "all starts of the run are cleaned"


def test_a_failed_rank_is_started_again_where_restarts_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = train("fail_at_first", "--restarts=1")
    stdout, stderr = started.communicate(timeout=DEADLINE_S)

    assert started.returncode == 0, stderr
    result = json.loads(stdout)
    assert result["state"] == "finished"
    assert [line.split(" on ")[0] for line in result["restarts"]] == ["attempt 1 failed: rank 1"]
    (restart,) = [line for line in stderr.splitlines() if "attempt 2" in line]
    assert "run r failed: rank 1 on " in restart

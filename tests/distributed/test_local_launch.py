"""The launcher with real torchrun and ranks that only pretend to train."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from yoked.errors import DataError, UsageError, YokedError
from yoked.launch.failure import RankCrash
from yoked.launch.local import LocalLaunch, run_ranks
from yoked.train.config import TrainConfig

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def importable_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{SOURCE}")


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    def start(behaviour: str) -> dict[str, Any]:
        monkeypatch.setenv("FAKE", behaviour)
        config = TrainConfig(run="r", runs_dir=tmp_path, ranks=2)
        return run_ranks(
            LocalLaunch(
                run_dir=tmp_path / "r", ranks=2, config=config.to_dict(), module="fake_rank"
            )
        )

    return start


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)


def launcher_with(behaviour: str, runs_dir: Path) -> subprocess.Popen[str]:
    """A launcher in a process of its own, whose ranks are up when this returns."""
    launcher = subprocess.Popen(
        [sys.executable, str(HERE / "fake_launcher.py"), str(runs_dir)],
        env={**os.environ, "FAKE": behaviour},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: all(read_pid(runs_dir, rank) is not None for rank in (0, 1)))
    except AssertionError:
        launcher.kill()
        launcher.communicate()
        raise
    return launcher


def read_pid(runs_dir: Path, rank: int) -> int | None:
    file = runs_dir / "r" / f"pid.{rank}"
    return int(file.read_text()) if file.is_file() and file.read_text() else None


def rank_pids(runs_dir: Path) -> list[int]:
    pids = [read_pid(runs_dir, rank) for rank in (0, 1)]
    return [pid for pid in pids if pid is not None]


def test_the_result_of_rank_0_comes_back_and_the_others_print_to_their_logs(
    launch: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    result = launch("finish")

    assert (result["run"], result["steps"]) == ("r", 3)
    logs = tmp_path / "r" / "logs"
    assert (logs / f"{socket.gethostname()}.0.log").read_text() == "rank 0 says hello\n"
    assert (logs / f"{socket.gethostname()}.1.log").read_text() == "rank 1 says hello\n"
    assert list((tmp_path / "r").glob("launch-*")) == []


def test_the_rank_that_failed_first_speaks_for_itself(
    launch: Callable[[str], dict[str, Any]], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(DataError) as caught:
        launch("one_cannot_read")

    assert caught.value.what == "rank 1: rows.bin is gone"
    assert caught.value.fix == ("prepare it again",)
    assert b"ChildFailedError" not in capfdbinary.readouterr().err


def test_an_error_of_all_ranks_is_said_once_of_the_run(
    launch: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        launch("all_misused")

    assert caught.value.what == "no such data"
    assert list(tmp_path.glob("r*")) == [], "a run that never began leaves no folder"


def test_a_bug_in_a_rank_comes_with_its_traceback(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    with pytest.raises(RankCrash, match=r"(?s)rank 1 failed.*one_has_a_bug.*one by none"):
        launch("one_has_a_bug")


def test_a_killed_rank_is_named_with_its_signal_and_last_words(
    launch: Callable[[str], dict[str, Any]],
) -> None:
    with pytest.raises(YokedError) as caught:
        launch("one_is_killed")

    assert caught.value.what.startswith("rank 1 was killed by SIGKILL")
    assert "allocating too much" in caught.value.what


def test_one_interrupt_lets_every_rank_save_and_ends_with_130(tmp_path: Path) -> None:
    launcher = launcher_with("wait_for_interrupt", tmp_path)

    launcher.send_signal(signal.SIGINT)
    stdout, _ = launcher.communicate(timeout=DEADLINE_S)

    assert launcher.returncode == 130
    assert json.loads(stdout)["state"] == "interrupted"
    assert [(tmp_path / "r" / f"saved.{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


def test_a_third_interrupt_kills_ranks_that_do_not_listen(tmp_path: Path) -> None:
    launcher = launcher_with("ignore_everything", tmp_path)
    pids = rank_pids(tmp_path)

    for _ in range(3):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.3)
    stdout, _ = launcher.communicate(timeout=DEADLINE_S)

    assert launcher.returncode == 130
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of the death")
def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = launcher_with("ignore_everything", tmp_path)
    pids = rank_pids(tmp_path)

    launcher.kill()
    launcher.communicate()

    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))

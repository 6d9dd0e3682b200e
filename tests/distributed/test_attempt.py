"""The ranks of one host in an attempt, started by torchrun's agent in this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from yoked.launch.bootstrap.attempt import ATTEMPT_VARIABLE, LocalRanks
from yoked.launch.bootstrap.job import Job, read_job
from yoked.launch.bootstrap.rank import HOST_PID

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
DEADLINE_S = 30.0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two ranks that only wait, and heed no signal that can be ignored."""
    # The agent sets them for its ranks; afterwards they are as they were.
    for name in (ATTEMPT_VARIABLE, HOST_PID):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1] / "src"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (tmp_path / "logs").mkdir()
    path = tmp_path / "job.json"
    content = {
        "version": 1,
        "run": "r",
        "launch_id": "l",
        "folder": str(tmp_path),
        "node_rank": 0,
        "nodes": [{"host": "alpha", "address": "127.0.0.1", "ranks": 2}],
        "control_port": port,
        "control_fd": None,
        "restarts": 0,
        "resume_args": [],
        "program": {"kind": "script", "name": str(HERE / "host_acts.py"), "args": ["deaf"]},
        "cwd": str(tmp_path),
        "bootstrap": False,
    }
    path.write_text(json.dumps(content))
    return read_job(path)


@pytest.fixture
def ranks(job: Job) -> Iterator[LocalRanks]:
    started = LocalRanks(job, 0, job.control_port, on_death=lambda: None)
    yield started
    started.end()
    until(lambda: started.over)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def pids(job: Job) -> list[int]:
    """Of both ranks, once they are deaf."""
    marks = [job.cwd / f"{rank}.0.mark" for rank in job.local_ranks]
    until(lambda: all(mark.exists() for mark in marks))
    return [int(mark.read_text()) for mark in marks]


def test_a_rank_that_was_killed_before_another_host_had_us_end_all_is_told_of(
    job: Job, ranks: LocalRanks
) -> None:
    os.kill(pids(job)[1], signal.SIGKILL)
    # Sooner than the agent looks at its ranks again.
    ranks.end()
    until(lambda: ranks.over)

    (failure,) = ranks.failures()
    assert (failure.rank, failure.signal) == (1, "SIGKILL")


def test_ranks_that_were_ended_have_not_failed(job: Job, ranks: LocalRanks) -> None:
    pids(job)
    ranks.end()
    until(lambda: ranks.over)

    assert ranks.failures() == ()

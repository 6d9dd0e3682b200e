"""The ranks of one host in a generation, and the store through which they meet."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion
from torch.distributed import TCPStore

from yoked.launch.bootstrap.job import Job, read_job
from yoked.launch.bootstrap.spawn import LocalRanks

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
DEADLINE_S = 30.0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two ranks that only wait, and heed no signal that can be ignored."""
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1] / "src"))
    (tmp_path / "logs").mkdir()
    path = tmp_path / "job.json"
    content = {
        "version": 1,
        "run": "r",
        "launch_id": "l",
        "folder": str(tmp_path),
        "node_rank": 0,
        "nodes": [{"host": "alpha", "address": "127.0.0.1", "ranks": 2}],
        "control_port": 0,
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
    started = LocalRanks(job, 0, restarts=0, on_death=lambda: None)
    yield started
    started.end()
    until(lambda: started.over)
    started.close()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def pids(job: Job, attempt: int = 0) -> list[int]:
    """Of both ranks, once they are deaf."""
    marks = [job.cwd / f"{rank}.{attempt}.mark" for rank in job.local_ranks]
    until(lambda: all(mark.exists() for mark in marks))
    return [int(mark.read_text()) for mark in marks]


def test_a_rank_that_was_killed_before_another_host_had_us_end_all_is_told_of(
    job: Job, ranks: LocalRanks
) -> None:
    os.kill(pids(job)[1], signal.SIGKILL)
    # Sooner than we look at our ranks again.
    ranks.end()
    until(lambda: ranks.over)

    (failure,) = ranks.failures()
    assert (failure.rank, failure.signal) == (1, "SIGKILL")


def test_ranks_that_were_ended_have_not_failed(job: Job, ranks: LocalRanks) -> None:
    pids(job)
    ranks.end()
    until(lambda: ranks.over)

    assert ranks.failures() == ()


def test_ranks_have_the_niceness_of_the_job_and_their_parent_has_not(job: Job) -> None:
    before = os.nice(0)
    path = job.folder / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "nice": before + 7}))
    started = LocalRanks(job, 0, restarts=0, on_death=lambda: None)
    try:
        assert [psutil.Process(pid).nice() for pid in pids(job)] == [before + 7] * 2
        sessions = [Path(f"/proc/{pid}/autogroup") for pid in pids(job)]
        for autogroup in (each for each in sessions if each.exists()):
            assert autogroup.read_text().endswith(f" nice {before + 7}\n")
        assert os.nice(0) == before
    finally:
        started.end()
        until(lambda: started.over)
        started.close()


def environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_ranks_have_the_variables_that_torchrun_gives_them(job: Job, ranks: LocalRanks) -> None:
    second = environment(pids(job)[1])

    assert {name: second[name] for name in EXPECTED} == EXPECTED
    assert second["MASTER_PORT"] == str(ranks.store_port)
    assert Path(second["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()


def test_a_second_attempt_has_the_name_of_the_first_and_a_number_of_its_own(job: Job) -> None:
    again = LocalRanks(job, 1, restarts=1, on_death=lambda: None)
    found = environment(pids(job, attempt=1)[0])
    again.end()
    until(lambda: again.over)
    again.close()

    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "YOKED_ATTEMPT")
    assert [found[name] for name in names] == ["l", "1", "1"]


EXPECTED = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "l",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def test_ranks_that_do_not_obey_are_killed_with_what_they_started(job: Job) -> None:
    program = replace(job.program, args=("deaf_beside_a_worker",))
    content = json.loads((job.folder / "job.json").read_text())
    content["program"]["args"] = list(program.args)
    (job.folder / "job.json").write_text(json.dumps(content))
    started = LocalRanks(job, 0, restarts=0, on_death=lambda: None)
    workers = [psutil.Process(pid).children()[0] for pid in pids(job)]

    started.end()
    until(lambda: started.over)
    started.close()

    until(lambda: not any(worker.is_running() for worker in workers))


def test_a_store_that_is_killed_is_told_of(job: Job, snapshot: SnapshotAssertion) -> None:
    told: list[int] = []
    ranks = LocalRanks(job, 0, restarts=0, on_death=lambda: told.append(1))
    pids(job)
    [store] = [one for one in psutil.Process().children() if "yoked.ranks.store" in one.cmdline()]

    store.kill()
    until(lambda: ranks.over or bool(told))
    ranks.end()
    until(lambda: ranks.over)
    ranks.close()

    (failure,) = ranks.failures()
    assert (failure.rank, failure.signal) == (None, "SIGKILL")
    assert failure.what == snapshot


def test_the_store_is_served_on_loopback_alone(ranks: LocalRanks) -> None:
    assert ranks.store_port is not None
    client = TCPStore("127.0.0.1", ranks.store_port, None, False, timedelta(seconds=DEADLINE_S))

    client.set("key", "value")

    assert client.get("key") == b"value"
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", ranks.store_port)) == errno.ECONNREFUSED


def test_ranks_that_meet_through_a_file_have_no_store(job: Job) -> None:
    started = LocalRanks(replace(job, file_store=True), 0, restarts=0, on_death=lambda: None)
    first = environment(pids(job)[0])
    started.end()
    until(lambda: started.over)

    assert "MASTER_PORT" not in first
    assert first["YOKED_MEETING_FILE"] == str(job.meeting_file(0))


def test_ranks_that_cannot_be_started_are_told_of(
    job: Job, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    told: list[int] = []

    started = LocalRanks(job, 0, restarts=0, on_death=lambda: told.append(1))

    assert started.over
    assert told == [1]
    (failure,) = started.failures()
    assert failure.headline == snapshot

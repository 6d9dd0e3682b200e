"""What tests of jobs need: a host program of their own, and an end to all that they started."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import JobFolder, all_jobs
from yoked.core.proc import ProcessId, kill_all
from yoked.remote.client import AgentClient

# There is a start in most of what is waited for: ranks load torch, and other programs may be busy.
DEADLINE_S = 60.0

# Prints numbered lines on both streams of rank 0 as its ranks' log files have them.
COUNTER = """
import os, sys, time
folder, lines, pause_s = os.environ["YOKED_JOB_FOLDER"], int(sys.argv[1]), float(sys.argv[2])
out = open(f"{folder}/logs/0.0.out", "ab", buffering=0)
err = open(f"{folder}/logs/0.0.err", "ab", buffering=0)
for number in range(lines):
    out.write(b"out %d\\n" % number)
    err.write(b"err %d\\n" % number)
    time.sleep(pause_s)
"""
# Ends as it was told to by outcome.json when it is interrupted.
PATIENT = """
import json, os, signal, time
def stop(number, frame):
    outcome = {"status": "interrupted", "exit_code": 130, "attempts": []}
    with open(os.environ["YOKED_JOB_FOLDER"] + "/outcome.json", "w") as file:
        json.dump(outcome, file)
    os._exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(600)
"""
SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
# A rank in a session of its own, which outlives the host program.
PARENT = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); print('ready', flush=True); time.sleep(600)"
)


def job_request(
    root: Path, program: str, *args: str, run: str = "try", **spec: Any
) -> dict[str, Any]:
    """The arguments of `job_start` for a job of one host. root: the state folder there."""
    launch_id = secrets.token_hex(6)
    folder = f"{root}/jobs/{run}"
    return {
        "spec": {
            "version": 1,
            "run": run,
            "launch_id": launch_id,
            "folder": folder,
            "node_rank": 0,
            "nodes": [{"host": "attic", "address": "127.0.0.1", "ranks": 1}],
            "control_port": 0,
            "control_fd": None,
            "restarts": 0,
            "program": {"kind": "script", "name": "train.py", "args": []},
            **spec,
        },
        "argv": [sys.executable, "-c", program, *args],
        "env": {"YOKED_RUN": run, "YOKED_LAUNCH_ID": launch_id},
        "cwd": f"{folder}/work",
    }


def launch(agent: AgentClient, root: Path, program: str, *args: str, **more: Any) -> JobFolder:
    """Start a job of one host; returns its folder."""
    request = job_request(root, program, *args, **more)
    agent.call("job_start", **request)
    agent.call("job_go", run=request["spec"]["run"])
    return JobFolder(root / "jobs" / request["spec"]["run"])


def until(done: Callable[[], object], what: str) -> None:
    """Wait; fails when it does not come about."""
    until_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < until_s, f"{what}: not in {DEADLINE_S:g} s"
        time.sleep(0.02)


def says(path: Path, words: str) -> Callable[[], bool]:
    """Whether a file has these words."""
    return lambda: path.exists() and words in path.read_text()


@contextmanager
def no_job_left() -> Iterator[None]:
    """Ends what is left of the jobs of this process's state folder, however the test ended."""
    try:
        yield
    finally:
        for job in all_jobs():
            (job.path / "abort").touch()
            kill_all(job.launch_id)
        for job in all_jobs():
            until(lambda job=job: not job.supervised, f"the end of {job.run}")


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return ProcessId.of(pid).alive
    except ProcessLookupError:
        return False


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is gone."""
    os.kill(pid, 9)
    until(lambda: not running(pid), f"the end of process {pid}")

"""Stays with one job on a host, from its preparation to its end; outlives ssh and controller.

It starts the host program when the controller says so, notes when which byte of the logs came,
records how the program ended, and leaves no process of the job behind.
Nothing depends on it while the job runs: ranks write to files. Killed, it is replaced by the next
agent that looks at the job, and its successor takes over what runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from yoked.agent.awake import Awake, inhibitor_argv
from yoked.agent.jobfolder import JobFolder
from yoked.agent.logtimes import LogTimes
from yoked.agent.verdict import leave_verdict
from yoked.core.proc import FOLDER_VARIABLE, ProcessId, boot_id, kill_all

# The controller prepares all hosts, each within a minute, before it says go.
GO_WITHIN_S = 150.0
_GO_POLL_S = 0.01
_WATCH_EVERY_S = 0.2
# Until a rank has said something: nothing trains yet, and somebody waits for the first line.
_WATCH_EAGERLY_EVERY_S = 0.05
# They are named for whoever looks into it.
_MOST_SWEPT = 100


def supervise(folder: Path) -> int:
    """Supervise the job in a folder; returns the exit status.

    Standard input is a pipe that the agent holds while the job is prepared: its end means that
    the controller is gone.
    """
    if os.fork():
        # Our parent need not wait for us, and we lead no session that could get a terminal.
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = JobFolder(folder)
    try:
        with job.locked() as ours:
            if not ours:
                return 1
            program = _take_over(job) if job.was_started else _begin(job)
            if program is not None:
                _watch(job, program)
    except FileNotFoundError:
        # The folder was removed under us: there is nothing left to record.
        if folder.exists():
            raise
    return 0


class HostProgram:
    """The host program. child: None when a supervisor before us started it."""

    def __init__(self, process: ProcessId | None, child: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._child = child

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        if self._child is not None:
            return self._child.poll() is not None
        return self._process is None or not self._process.alive

    def end(self) -> dict[str, Any]:
        """How it ended: exit_status or signal; both None where nobody saw it."""
        status = None if self._child is None else self._child.returncode
        return {
            "exit_status": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "time_s": time.time(),
        }


def _begin(job: JobFolder) -> HostProgram | None:
    """Wait for the word, then start the host program; None: there is nothing to watch."""
    _record(job, None)
    job.keep_room()
    if not _await_go(job):
        job.remove()
        return None
    _leave_standard_input()
    try:
        child = _start(job)
    except OSError as problem:
        said = f"its launcher cannot be started: {problem.strerror}: {problem.filename}"
        job.write_end({"exit_status": 127, "signal": None, "time_s": time.time(), "error": said})
        return None
    process = ProcessId.of(child.pid)
    _record(job, process)
    return HostProgram(process, child)


def _take_over(job: JobFolder) -> HostProgram:
    process = job.host_program
    _record(job, process)
    return HostProgram(process, None)


def _record(job: JobFolder, program: ProcessId | None) -> None:
    former = job.read("supervisor.json").get("host_program")
    job.write(
        "supervisor.json",
        {
            **ProcessId.of(os.getpid()).to_json(),
            "boot_id": boot_id(),
            "launch_id": job.launch_id,
            # One of before a restart of the machine stays on record; it is not looked for.
            "host_program": former if program is None else program.to_json(),
        },
    )


def _await_go(job: JobFolder) -> bool:
    """Whether the word came, in time and while whoever prepared the job was there."""
    until_s = time.monotonic() + GO_WITHIN_S
    tethered = True
    while tethered and time.monotonic() < until_s:
        if (job.path / "abort").exists():
            return False
        if (job.path / "go").exists():
            return True
        readable, _, _ = select.select([0], [], [], _GO_POLL_S)
        # Nothing is ever written to it: what can be read is its end.
        tethered = not readable
    return (job.path / "go").exists()


def _leave_standard_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _start(job: JobFolder) -> subprocess.Popen[bytes]:
    start, spec = job.read("start.json"), job.read("job.json")
    descriptor = spec.get("control_fd")
    handed_down = () if descriptor is None else (int(descriptor),)
    env = {**os.environ, **start["env"], FOLDER_VARIABLE: str(job.path)}
    with (job.logs / "launcher.out").open("ab") as out, (job.logs / "launcher.err").open("ab") as e:
        child = subprocess.Popen(
            start["argv"],
            env={name: value for name, value in env.items() if value is not None},
            cwd=start["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=e,
            start_new_session=True,
            pass_fds=handed_down,
        )
    for number in handed_down:
        os.close(number)
    return child


def _watch(job: JobFolder, program: HostProgram) -> None:
    """Until the host program ends, and then see to it that nothing else is left."""
    awake = Awake(inhibitor_argv(job.run))
    times = LogTimes(job.logs)
    try:
        while not program.over:
            # A disk that is full for a while must not end the watch.
            with contextlib.suppress(OSError):
                times.note()
            time.sleep(_WATCH_EVERY_S if times.noted_any else _WATCH_EAGERLY_EVERY_S)
        swept = kill_all(job.launch_id)
        with contextlib.suppress(OSError):
            times.note()
    finally:
        times.close()
        awake.release()
    ended = {**program.end(), "swept": swept[:_MOST_SWEPT]}
    # Whoever sees that the job is over finds the verdict in the run's folder.
    leave_verdict(job, ended)
    job.write_end(ended)

"""Jobs on this host: prepare, start, stop, remove.

A launch has two phases, so that nothing runs when another host cannot take part: `job_start`
makes the folder, reserves the port and starts a supervisor that waits; `job_go` lets it start.
Until then the job is tethered to this agent: when the controller dies, the job removes itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yoked.agent.detach import start_supervisor
from yoked.agent.files import require_space
from yoked.agent.folders import checkout_tree
from yoked.agent.jobfolder import (
    ACTIVE,
    DOCTOR_NAME,
    SAVE_ASKED,
    WORK,
    JobFolder,
    find_job,
    job_named,
    last_lines,
)
from yoked.agent.jobstatus import keep_supervised
from yoked.agent.server import Call
from yoked.core.proc import ProcessId, kill_all
from yoked.errors import JobError, YokedError
from yoked.paths import private_folder

# Room for logs: a job that cannot say anything is not worth starting.
NEEDED_BYTES = 64 << 20
_ANSWER_S = 20.0
_POLL_S = 0.01
_GENTLE_SIGNALS = {"checkpoint": signal.SIGINT, "terminate": signal.SIGTERM}

# The other ends of the prepared jobs' standard inputs: closed with this process.
_tethers: dict[str, int] = {}


def answer_job_start(call: Call) -> int:
    """Prepare a job. args: spec (job.json), argv, env and cwd of the host program, and
    optionally tree, the digest of what is copied to `work`, and files {name: text}, private ones.

    Returns the control port; on node 0 of several hosts it is reserved here, and handed down as a
    listening socket. Raises JobError, and then nothing is left of it.
    """
    spec, argv = dict(call.args["spec"]), list(call.args["argv"])
    job = job_named(spec["run"])
    argv[0] = _program(argv[0])
    require_space(job.path, NEEDED_BYTES)
    _make_folder(job)
    listener = None
    try:
        with _not_stopped(job):
            if spec["node_rank"] == 0 and len(spec["nodes"]) > 1:
                listener = _reserve_port(spec)
            start = {"argv": argv, "env": call.args["env"], "cwd": call.args["cwd"]}
            _fill(job, spec, start, call.args.get("files", {}), listener)
            if (tree := call.args.get("tree")) is None:
                (job.path / WORK).mkdir()
            else:
                checkout_tree(tree, job.path / WORK)
            if not Path(start["cwd"]).is_dir():
                raise JobError(f"{start['cwd']} is no folder", fix="name one that is there")
    except BaseException:
        # Stopped meanwhile, its name may be another launch's by now.
        if job.launch_id in ("", spec["launch_id"]):
            _abort(job)
        _untether(spec["launch_id"])
        raise
    finally:
        if listener is not None:
            # The supervisor has its own hold on it.
            listener.close()
    return int(spec["control_port"])


def _fill(
    job: JobFolder,
    spec: dict[str, Any],
    start: dict[str, Any],
    files: Mapping[str, str],
    listener: socket.socket | None,
) -> None:
    """Write what the supervisor reads, and start it."""
    job.write("start.json", start)
    job.write("job.json", {**spec, "folder": str(job.path)})
    for name, text in files.items():
        job.write_private(name, text)
    _tether_supervisor(job, listener)


def answer_job_go(call: Call) -> dict[str, Any]:
    """Start a prepared job; returns the number of its host program. Raises JobError."""
    job = job_named(call.args["run"])
    launch_id = job.launch_id
    if launch_id not in _tethers:
        raise _stopped(job)
    if not job.supervised:
        raise JobError(f"run {job.run} was prepared, but its supervisor is gone", fix="yoked clean")
    (job.path / "go").touch()
    _await(lambda: job.was_started or bool(job.read("end.json")) or not job.supervised)
    _untether(launch_id)
    if not job.was_started:
        said = job.read("end.json").get("error") or _last_words(job)
        raise JobError(
            f"run {job.run} did not start: {said}",
            fix="yoked doctor    looks at Python, the disk and the limits of each host",
        )
    return {"host_program": job.read("supervisor.json")["host_program"]["pid"]}


def answer_job_stop(call: Call) -> list[int]:
    """Ask a job to end. args: run; how: checkpoint, terminate or kill; optionally launch_id:
    another launch's job of that name is let alone.

    checkpoint and terminate are SIGINT and SIGTERM to the host program, which knows what to do
    with its ranks and tells the other hosts; kill is SIGKILL to all that is of the launch. Who
    asks for a checkpoint again waits for the same one: a second SIGINT would end it.
    Returns the numbers of the processes that got a signal.
    """
    job, how = find_job(call.args["run"]), call.args["how"]
    if call.args.get("launch_id") not in (None, job.launch_id):
        return []
    if job.state == "prepared" and _abort(job):
        return []
    # It may have been told to go at the same time.
    if job.state != "running":
        return []
    keep_supervised(job)
    if how == "checkpoint" and job.read("stop.json").get("how") == how:
        return []
    job.write("stop.json", {"how": how, "time_s": time.time()})
    if how == "kill":
        killed = kill_all(job.launch_id)
        # Until its supervisor has said so, it is not over, and could not be removed.
        _await(lambda: bool(job.read("end.json")))
        return killed
    program = job.host_program
    reached = program is not None and program.signal(_GENTLE_SIGNALS[how], job.launch_id)
    return [program.pid] if program and reached else []


def answer_job_save(call: Call) -> bool:
    """Ask a training that runs for a checkpoint; returns whether it runs.

    args: run; launch_id: another launch's job of that name is let alone.
    """
    job = find_job(call.args["run"])
    if job.launch_id != call.args["launch_id"] or job.state != "running":
        return False
    (job.path / SAVE_ASKED).touch(mode=0o600)
    return True


def answer_job_failed(call: Call) -> bool:
    """Tell a job that runs that another host's part of it is over; returns whether it runs.

    args: run, launch_id, failure: that host's. The host program reads it while it waits for all
    hosts to come; later it learns by itself that one is gone.
    """
    job = find_job(call.args["run"])
    if job.launch_id != call.args["launch_id"] or job.state != "running":
        return False
    job.write("failed.json", call.args["failure"])
    return True


def answer_job_doctor(call: Call) -> bool:
    """Keep with a job what the doctor said at its start; returns whether it was.

    args: run, launch_id, said: an object. Another launch's job of that name is let alone.
    """
    job = find_job(call.args["run"])
    if job.launch_id != call.args["launch_id"]:
        return False
    job.write(DOCTOR_NAME, call.args["said"])
    return True


def answer_job_remove(call: Call) -> bool:
    """Remove a job that is prepared or over, with its logs; returns whether it was.

    args: run; optionally launch_id: another launch's job of that name stays. Raises JobError for
    one that runs.
    """
    job, launch_id = find_job(call.args["run"]), call.args.get("launch_id")
    if launch_id is not None and job.launch_id != launch_id:
        return False
    if job.state == "prepared" and _abort(job):
        return not job.path.exists()
    state = job.state
    if state in ACTIVE:
        raise JobError(f"run {job.run} is {state}", fix=f"yoked stop {job.run}")
    # A supervisor that writes its last lines would otherwise find its folder gone.
    _await(lambda: not job.supervised)
    job.remove()
    return not job.path.exists()


def _last_words(job: JobFolder) -> str:
    """Why there is no host program, where the supervisor could not even note it."""
    said = last_lines(job.logs / "supervisor.err", 1)
    return said[0] if said else "what was prepared is gone: it took too long"


def _program(name: str) -> str:
    # A Path would turn ./x into x.
    path = shutil.which(os.path.expanduser(name))  # noqa: PTH111 - see above
    if path is None:
        raise JobError(f"there is no program {name}", fix="yoked install")
    return path


def _make_folder(job: JobFolder) -> None:
    """mkdir is the lock: of two controllers, one is first."""
    private_folder(job.path.parent)
    try:
        job.path.mkdir(mode=0o700)
    except FileExistsError:
        state = job.state
        raise JobError(
            f"the name {job.run} is taken by a run that is {state}",
            fix=(
                "take another name for the run: --run NAME",
                f"yoked attach {job.run}"
                if state in ACTIVE
                else f"yoked clean {job.run}    frees it",
            ),
        ) from None
    job.logs.mkdir()


@contextlib.contextmanager
def _not_stopped(job: JobFolder) -> Iterator[None]:
    """Raises JobError, whatever else was met, when the folder was removed meanwhile."""
    folder = _inode(job.path)
    problem: Exception | None = None
    try:
        yield
    except (OSError, KeyError, YokedError) as met:
        problem = met
    if _inode(job.path) != folder:
        raise _stopped(job) from problem
    if problem is not None:
        raise problem


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _stopped(job: JobFolder) -> JobError:
    return JobError(
        f"run {job.run} was removed before it began: somebody stopped it, or another host took "
        "too long",
        fix="start it again, if that was not meant",
    )


def _reserve_port(spec: dict[str, Any]) -> socket.socket:
    """Listen on a free port of node 0's address, and write it into the spec. Raises JobError."""
    address = spec["nodes"][0]["address"]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, 0))
        # Another host may be there first; it then waits instead of being refused.
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise JobError(
            f"no port of {address} can be had: {problem.strerror}",
            fix="yoked init --force    with all hosts: finds out anew which address each has",
        ) from problem
    spec["control_port"], spec["control_fd"] = listener.getsockname()[1], listener.fileno()
    return listener


def _tether_supervisor(job: JobFolder, listener: socket.socket | None) -> None:
    """Start the supervisor, with a standard input that ends with this agent."""
    theirs, ours = os.pipe()
    _tethers[job.launch_id] = ours
    try:
        handed_down = () if listener is None else (listener.fileno(),)
        start_supervisor(job, tether_fd=theirs, pass_fds=handed_down)
    finally:
        os.close(theirs)
    _await(lambda: bool(job.read("supervisor.json")))
    if not job.read("supervisor.json"):
        said = " ".join(last_lines(job.logs / "supervisor.err", 3)) or "it said nothing"
        raise JobError(f"no supervisor came up for run {job.run}: {said}", fix="start it again")


def _untether(launch_id: str) -> None:
    tether = _tethers.pop(launch_id, None)
    if tether is not None:
        os.close(tether)


def _abort(job: JobFolder) -> bool:
    """Undo what was prepared; returns when its folder is gone. False: it goes on, it was started.

    A supervisor that had the word to go before this one does not look for this one any more.
    """
    launch_id, record = job.launch_id, job.read("supervisor.json")
    with contextlib.suppress(FileNotFoundError):
        (job.path / "abort").touch()
    _await(lambda: not job.path.exists() or not job.supervised or job.was_started)
    if job.was_started:
        return False
    if record:
        # It frees the name first, and then removes what had it.
        supervisor = ProcessId.from_json(record)
        _await(lambda: not supervisor.alive)
    _untether(launch_id)
    job.remove()
    return True


def _await(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _ANSWER_S
    waiting = threading.Event()
    while not done() and time.monotonic() < until_s:
        waiting.wait(_POLL_S)

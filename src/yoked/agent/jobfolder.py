"""What a host knows of its jobs: all of it lies in files, so any agent finds it.

<state>/jobs/<run>/
  job.json          the spec, the same on all hosts but for what is the host's own
  start.json        argv, env and cwd of the host program
  go, abort         the controller's word to a job that is prepared
  lock              held by the supervisor as long as it lives
  supervisor.json   who supervises, and which process the host program is
  stop.json         what `job_stop` was asked for
  refused.json      node 0's: connections that were not the run's, and words that were no notices
  notify.json       node 0's, private: who is told how the run ended, or why it stands
  stacks.asked      somebody wants to know where all threads of the ranks are; gone once they know
  save.asked        somebody wants a checkpoint of a training; gone once its ranks are told
  trace.asked       somebody wants to know what ranks do for some steps; gone once they are told
  diagnosis.json    why the run stands, as the host program can tell while it goes on
  diagnosis.jsonl   the same over time: what was said, and when (yoked.diagnosis.timeline)
  run.json          of a program of `yoked run`: what it is, as the run's folder has it
  doctor.json       node 0's: what the doctor's quick form said at the start
  stage.json        the host program's: which launchers and ranks a launch waits for
  failed.json       a controller's word that another host is over, for one that waits for it
  earlier.json      the host program's: attempts that failed and were followed by another one
  outcome.json      the host program's last act: how the run went, as all hosts agreed
  end.json          the supervisor's: exit status or signal; nothing of the job runs any more
  room-for-end.json becomes end.json on a disk that is full by then
  logs/, errors/    what the ranks wrote
  work/             a copy of the program's folder

outcome.json and end.json are two, as their writers know different things. The host program alone
knows what its attempts came to, and may be killed without a word; the supervisor alone sees
its exit status, and that the last process of the job is gone. `JobFolder.state` reads both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yoked.core.fs import locked, read_json, read_tail, write_bytes
from yoked.core.names import RUN_NAME, RUN_NAME_RULE, path_word
from yoked.core.proc import ProcessId, boot_id
from yoked.core.torchnoise import is_noise
from yoked.errors import JobError
from yoked.paths import state_root

# Where ranks run.
WORK = "work"
STACKS_ASKED, SAVE_ASKED, TRACE_ASKED = "stacks.asked", "save.asked", "trace.asked"
NOTIFY_NAME = "notify.json"
TIMELINE_NAME = "diagnosis.jsonl"
DOCTOR_NAME = "doctor.json"
PROGRAM_NAME = "run.json"
# A job in one of these is not over.
ACTIVE = ("prepared", "running")
_REMOVED = ".removed-"
_LOCK_PATIENCE_S = 2.0
# From the first file of a job to its supervisor.
MADE_WITHIN_S = 20.0
# The kind of a failure of a host program that left no verdict of its own.
LAUNCHER_ENDED = "HostProgramEnded"
# Of its last line, in a sentence.
_SHOWN = 200
# More than end.json takes.
_ROOM, _ROOM_BYTES = "room-for-end.json", 4096
# Less is no room for the files of a job.
_LEAST_BYTES = 64 << 10


class JobFolder(NamedTuple):
    """A job on this host."""

    # No dataclass: those import half of the standard library, and every look at a run waits.

    path: Path

    @property
    def run(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def logs(self) -> Path:
        """Where the ranks' output lies."""
        return self.path / "logs"

    def read(self, name: str) -> dict[str, Any]:
        """The content of a JSON file of the job; empty where it is missing or torn."""
        return read_json(self.path / name) or {}

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file such that a reader sees all of it or nothing."""
        write_bytes(self.path / name, json.dumps(content).encode(), durable=False)

    def keep_room(self) -> None:
        """Set room aside for end.json, which is needed most when the disk is full."""
        (self.path / _ROOM).write_bytes(bytes(_ROOM_BYTES))

    def write_end(self, content: Mapping[str, Any]) -> None:
        """Write end.json, on a full disk into the room that was set aside."""
        try:
            self.write("end.json", content)
        except OSError:
            room = self.path / _ROOM
            with room.open("r+b") as file:
                file.write(json.dumps(content).encode())
                file.truncate()
            room.rename(self.path / "end.json")

    def write_private(self, name: str, text: str) -> None:
        """Write a file that nobody else may read, such as a key."""
        path = self.path / name
        if path.parent != self.path or path.name in ("", ".."):
            raise JobError(f"{name!r} is no name for a file of a job", fix="give a plain name")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    @property
    def launch_id(self) -> str:
        """What its processes have in their environment; empty while the folder is being made."""
        return str(self.read("job.json").get("launch_id", ""))

    @property
    def host_program(self) -> ProcessId | None:
        """The host program, which may have ended; None before it was started, or another boot."""
        record = self.read("supervisor.json")
        if not record.get("host_program") or record.get("boot_id") != boot_id():
            return None
        return ProcessId.from_json(record["host_program"])

    @property
    def was_started(self) -> bool:
        """Whether there ever was a host program."""
        return bool(self.read("supervisor.json").get("host_program"))

    @property
    def supervised(self) -> bool:
        """Whether a supervisor lives."""
        try:
            with (self.path / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    @property
    def state(self) -> str:
        """prepared, running, finished, failed, stopped, interrupted or lost.

        lost: nobody saw how it ended, as when the machine was switched off.
        """
        supervised = self.supervised
        ended = self.read("end.json")
        if ended:
            return self.end_state(ended)
        if not self.was_started:
            return "prepared" if supervised or self._in_the_making else "lost"
        program = self.host_program
        if supervised or (program is not None and program.alive):
            return "running"
        return str(self.read("outcome.json").get("status", "lost"))

    @property
    def _in_the_making(self) -> bool:
        """Whether an agent may still be at work on it, who has not come to the supervisor."""
        try:
            return abs(time.time() - self.path.stat().st_mtime) < MADE_WITHIN_S
        except OSError:
            return False

    def end_state(self, ended: Mapping[str, Any]) -> str:
        """The state of a job that is over. ended: of end.json."""
        outcome = self.read("outcome.json")
        if outcome:
            return str(outcome["status"])
        if self.read("stop.json"):
            return "stopped"
        unseen = ended.get("exit_status") is None and ended.get("signal") is None
        return "lost" if unseen else "failed"

    def failure(self, ended: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The first cause of a failure: of outcome.json, or as the end of the program shows.

        ended: what end.json is about to be; None: what it is.
        """
        attempts = self.read("outcome.json").get("attempts") or [{}]
        failure: dict[str, Any] | None = attempts[-1].get("failure")
        state = self.state if ended is None else self.end_state(ended)
        if failure is not None or state not in ("failed", "lost"):
            return failure
        spec, ended = self.read("job.json"), self.read("end.json") if ended is None else ended
        node = spec.get("node_rank", 0)
        host = spec["nodes"][node]["host"] if spec.get("nodes") else ""
        what, fix = _launcher_end(self, host, ended)
        return {
            "host": host,
            "node": node,
            "rank": None,
            "kind": LAUNCHER_ENDED,
            "cause": "launcher-died",
            "what": what,
            "fix": list(fix),
            "exit_code": ended.get("exit_status"),
            "signal": _signal_name(ended.get("signal")),
            "traceback": None,
            "last_lines": last_lines(self.logs / "launcher.err", 20),
            "time_s": ended.get("time_s", 0.0),
        }

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Be the supervisor; False: another is."""
        with contextlib.ExitStack() as held:
            try:
                # It may only be held by somebody who looks whether there is a supervisor.
                held.enter_context(locked(self.path / "lock", _LOCK_PATIENCE_S))
            except TimeoutError:
                yield False
                return
            yield True

    def remove(self) -> None:
        """Remove all of it; its name is free at once."""
        gone = self.path.with_name(f"{_REMOVED}{os.urandom(6).hex()}")
        import shutil

        with contextlib.suppress(FileNotFoundError):
            self.path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def jobs_root() -> Path:
    """Where this host keeps its jobs."""
    return state_root() / "jobs"


def all_jobs() -> list[JobFolder]:
    """The jobs of this host, the newest first."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(jobs_root()) if entry.is_dir()]
    except FileNotFoundError:
        return []
    jobs = [JobFolder(path) for path in entries if RUN_NAME.fullmatch(path.name)]
    return sorted(jobs, key=lambda job: _started_s(job.path), reverse=True)


def half_removed() -> list[Path]:
    """What is left of jobs whose removal was cut short."""
    return sorted(jobs_root().glob(f"{_REMOVED}*"))


def find_job(run: str) -> JobFolder:
    """The job of a name; raises JobError, with the name that is nearest."""
    job = job_named(run)
    if not job.path.is_dir():
        import difflib

        names = [other.run for other in all_jobs()]
        near = difflib.get_close_matches(run, names, n=1)
        raise JobError(
            f"there is no run {run!r} here",
            fix=f"did you mean {near[0]}?" if near else "yoked runs",
        )
    return job


def job_named(run: str) -> JobFolder:
    """The job of a name, if there is one; raises JobError for what is no plain folder's name."""
    if not RUN_NAME.fullmatch(run):
        raise JobError(f"{run!r} cannot be the name of a run", fix=RUN_NAME_RULE)
    return JobFolder(jobs_root() / run)


def run_folder(job: JobFolder, spec: Mapping[str, Any]) -> Path:
    """Where a training writes: a person's own folder, or beside the jobs. spec: of job.json."""
    if spec.get("run_dir"):
        return Path(spec["run_dir"])
    return state_root() / "runs" / (spec.get("trains") or job.run)


def last_lines(path: Path, count: int, limit_bytes: int = 65_536) -> list[str]:
    """The last lines of a file, of its last limit_bytes; none where it is missing.

    Without torch's warnings that mean nothing.
    """
    try:
        content = read_tail(path, limit_bytes)
    except OSError:
        return []
    lines = content.decode(errors="replace").splitlines()
    return [line for line in lines if not is_noise(line)][-count:]


def _started_s(path: Path) -> float:
    # job.json is written once, when the job is prepared.
    for file in (path / "job.json", path):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


def _launcher_end(
    job: JobFolder, host: str, ended: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """How a host program ended that left no verdict, and what to do. ended: end.json."""
    if ended.get("error"):
        return str(ended["error"]), ("yoked doctor",)
    said = [line for line in last_lines(job.logs / "launcher.err", 20) if line.strip()]
    more = f"tail {path_word(job.logs / 'launcher.err')}    on {host}"
    if (name := _signal_name(ended.get("signal"))) is not None:
        what, fix = f"its launcher was killed by {name}", [more]
        if name == "SIGKILL":
            what += "; if you did not do it, the kernel did, for want of memory"
            fix = [f"journalctl -k    on {host} names the process, if it was memory"]
    elif ended.get("exit_status") is not None:
        what = f"its launcher ended with status {ended['exit_status']}"
        what, fix = f"{what}: {said[-1][:_SHOWN]}" if said else f"{what} and said nothing", [more]
        if said and said[-1].startswith(("ModuleNotFoundError", "ImportError")):
            fix = [f"yoked install    looks after the environment of {host}", more]
    else:
        what = "nobody saw how its launcher ended: it was killed, or the machine was switched off"
        fix = [more]
    if _has_no_room(job.path):
        return f"{what}; its disk is full", (f"df -h {path_word(job.path)}    on {host}", *fix)
    return what, tuple(fix)


def _has_no_room(folder: Path) -> bool:
    """Whether nothing can be written there."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    is_out_of_files = found.f_files > 0 and found.f_favail == 0
    return found.f_bavail * found.f_frsize < _LEAST_BYTES or is_out_of_files


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""How a rank ended, from its exit status, the error that it left, and its last lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yoked.channel.names import LOOPBACK
from yoked.core.fs import read_tail
from yoked.core.schema import decode
from yoked.core.torchnoise import is_noise
from yoked.diagnosis.absent import Absent, Place, absent_of
from yoked.diagnosis.activity import own_frame
from yoked.diagnosis.calls import Calls
from yoked.diagnosis.cause import SAME_CALLS, SAME_STEPS
from yoked.diagnosis.endings import EndCode, cause_of_end, is_of_a_gpu
from yoked.diagnosis.memory import MemoryTrend
from yoked.diagnosis.vitals import Frame
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.outcome import NOT_MET, Failure, Moment
from yoked.paths import data_root

# From SIGTERM to SIGKILL.
GRACE_S = 3.0
_LAST_LINES = 15
_TAIL_BYTES = 16_384
_NO_CONNECTION = ("refused", "timed out", "failed to connect", "timeout")
_ELSEWHERE = (
    "MASTER_ADDR leads to torch's store alone: a port that the program opens on node 0 by itself "
    "is at YOKED_NODE0_ADDR (docs/concepts/security.md)"
)
_STRANGER = (
    "if it comes back: a firewall that lets in the hosts of the fleet alone keeps strangers out "
    "(docs/concepts/security.md)"
)
# What to do where the error itself says nothing.
_FIXES: Mapping[EndCode, tuple[str, ...]] = {
    "out-of-memory": ("a smaller batch, or fewer ranks on that host, takes less memory",),
    "disk-full": ("make room there, or choose another folder for the run: df -h",),
    "data-ran-out": (SAME_STEPS,),
    "collective-mismatch": (SAME_CALLS,),
}
_NO_ROOM_BYTES = 1 << 20
# Of an error: hosts tell it each other, and answer a controller with it.
_MOST_CHARACTERS = 100_000
# More is no program that a person wrote.
_SOURCE_BYTES = 1 << 20
_DRIVER = Path("/proc/driver/nvidia/version")
# As faulthandler writes it.
_FRAME = re.compile(r'File "([^"]{1,400})", line (\d{1,9}) in (.{1,200})')


@dataclass(frozen=True)
class RankExit:
    """The end of a process. exit_code: negative for a signal; time_s: when it was seen.
    oom_killed: the kernel ended a process for want of memory just then.
    """

    pid: int
    exit_code: int
    time_s: float
    oom_killed: bool = False


@dataclass(frozen=True)
class _Error:
    """The error that a rank left: rank.py writes it, and yoked.train; its program may do so, too.

    calls, of_ranks: checked where they are used.
    """

    time_s: Moment
    kind: str
    what: str
    fix: tuple[str, ...] = ()
    traceback: str | None = None
    at: str | None = None
    exit_code: int | None = None
    calls: Any = None
    of_ranks: Any = None


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process, negative for a signal; None while it runs.

    Where the kernel lets us look without reaping it, its number is still its own, and what it
    leaves in its process group, such as workers that load data, is ended with it.
    """
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll()
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    if code != 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return code


def rank_failure(
    job: Job,
    attempt: int,
    rank: int,
    death: RankExit | None,
    ended_s: float | None,
    memory_of: Callable[[int], MemoryTrend | None] = lambda _: None,
) -> Failure | None:
    """What there is to say of a rank; None if it did not fail by itself.

    death: None if it ended well, or was ended by us. It may have failed all the same, and have
    been on its way out when we came.
    ended_s: when we began to end this host's ranks; what they complain of later is our doing.
    memory_of: how a rank's memory went; None: nothing is known of it.
    """
    error = _error(job, attempt, rank, ended_s)
    if death is None and error is None:
        return None
    if error is None:
        assert death is not None, "a rank without an error is reported for its death alone"
        ending = {**_ending(death), "at": _crashed_at(job, attempt, rank)}
    else:
        ending = _raised(error, death)
    if job.meeting_mark(attempt, rank).exists():
        ending.update(_in_a_meeting(ending))
    lines = last_lines(job, attempt, rank)
    if _sought_node_0_here(job, (ending["what"], *lines)):
        ending["fix"] = (*ending.get("fix", ()), _ELSEWHERE)
    cause = cause_of_end(
        signal=ending.get("signal"),
        kind=ending.get("kind"),
        what=ending["what"],
        last_lines=lines,
        oom_killed=death is not None and death.oom_killed,
        disk_full=_disk_full(job),
    )
    if cause == "out-of-memory" and not is_of_a_gpu(ending.get("kind"), (ending["what"], *lines)):
        trend = memory_of(rank)
        if trend is not None:
            ending["what"] = f"{ending['what']}; {trend.words}"
            ending["fix"] = ending.get("fix") or trend.fix
    # An error of yoked's own says what to do by itself.
    if cause == "exception" and not ending.get("fix"):
        absent = _absent(job, ending)
        if absent is not None:
            cause = absent.cause
            ending["what"] = f"{ending['what']}; {absent.what}"
            ending["fix"] = absent.fix
    if not ending.get("fix"):
        ending["fix"] = _FIXES.get(cause, ())
    failure = Failure(
        cause=cause,
        host=job.node.host,
        node=job.node_rank,
        rank=rank,
        pid=death.pid if death else None,
        last_lines=lines,
        **ending,
    )
    return failure if error is None else _of_whom(job, failure, error.of_ranks)


def _of_whom(job: Job, failure: Failure, told: object) -> Failure:
    """A failure as that of the ranks whose error it is; this rank has only been told of it.

    That one may be unable to leave its own word: its disk is full. Where it may be any of several,
    no rank is named.
    """
    ranks: tuple[int, ...] = ()
    with contextlib.suppress(ValueError):
        ranks = decode(tuple[int, ...], told)
    by_node = enumerate(job.ranks_by_node)
    nodes_of = {rank: node for node, there in by_node for rank in there}
    found = {rank: nodes_of[rank] for rank in ranks if rank in nodes_of}
    if not found or set(found) == {failure.rank}:
        return failure
    nodes = sorted(set(found.values()))
    hosts = tuple(job.nodes[node].host for node in nodes)
    return replace(
        failure,
        host=hosts[0],
        hosts=hosts if len(hosts) > 1 else (),
        node=nodes[0],
        rank=next(iter(found)) if len(found) == 1 else None,
        pid=None,
        exit_code=None,
        traceback=None,
        last_lines=(),
        at=None,
    )


def store_failure(job: Job, death: RankExit) -> Failure:
    """What there is to say of the end of the store, which no rank ends."""
    ending = _ending(death)
    return Failure(
        host=job.node.host,
        node=job.node_rank,
        pid=death.pid,
        **{**ending, "what": f"the store through which ranks meet: {ending['what']}"},
        last_lines=tuple(_tail(job.folder / "logs" / "launcher.err")[-_LAST_LINES:]),
    )


def no_start(job: Job, problem: OSError) -> Failure:
    """What there is to say of ranks that this host could not start."""
    return Failure(
        host=job.node.host,
        node=job.node_rank,
        kind=type(problem).__name__,
        what=f"its ranks could not be started: {problem.strerror or problem}",
        fix=("`ulimit -u` and `free -h` there: processes or memory may be at their end",),
        time_s=time.time(),
    )


def _sought_node_0_here(job: Job, said: Sequence[str]) -> bool:
    """Whether a rank on another host dialled a port of node 0's by MASTER_ADDR, and failed."""
    if job.node_rank == 0:
        return False
    return any(
        LOOPBACK in line and any(word in line.lower() for word in _NO_CONNECTION) for line in said
    )


def last_lines(job: Job, attempt: int, rank: int) -> tuple[str, ...]:
    """The end of what a rank printed; the stream that it wrote to last comes last."""
    both = (job.log_file(attempt, rank, "out"), job.log_file(attempt, rank, "err"))
    logs = [path for path in both if path.exists()]
    logs.sort(key=lambda path: path.stat().st_mtime_ns)
    lines = [line for path in logs for line in _tail(path)]
    return tuple(lines[-_LAST_LINES:])


def _error(job: Job, attempt: int, rank: int, ended_s: float | None) -> _Error | None:
    # yoked.train's own says more than the exit status that the rank program saw.
    for path in (job.launch_dir(attempt) / f"error.{rank}.json", job.error_file(attempt, rank)):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            error: _Error = decode(_Error, json.loads(path.read_text(encoding="utf-8")))
            if ended_s is None or error.time_s <= ended_s:
                return error
    return None


def _raised(error: _Error, death: RankExit | None) -> dict[str, Any]:
    """Fields of a Failure. An error explains a signal: some programs abort once they raised."""
    return {
        "kind": error.kind,
        "what": _shortened(error.what),
        "fix": error.fix,
        "traceback": error.traceback and _shortened(error.traceback),
        "at": error.at,
        "calls": calls_of(error.calls),
        "exit_code": death.exit_code if death else error.exit_code,
        "time_s": error.time_s,
    }


def _shortened(text: str) -> str:
    """The beginning and the end of what is too long to be told: an error may print all its data."""
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]} […] {text[-half:]}"


def calls_of(told: object) -> Calls | None:
    """The calls that a rank left word of; None: none, or its program has written into that file."""
    with contextlib.suppress(ValueError):
        found: Calls | None = decode(Calls | None, told)
        return found
    return None


def _absent(job: Job, ending: dict[str, Any]) -> Absent | None:
    """What the program expected of this host and did not find, where its error says so."""
    place = Place(
        host=job.node.host,
        # Ranks are children of this process, and run in its interpreter.
        python=sys.executable,
        folder=str(job.cwd),
        names=_names(job.cwd),
        sent=job.folder in job.cwd.parents,
        python_made=Path(sys.executable).is_relative_to(data_root() / "envs"),
        source=_source(job),
        args=job.program.args,
        has_gpu=_DRIVER.exists(),
    )
    return absent_of(ending["what"], ending.get("traceback") or "", ending.get("at"), place)


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - names are all that is wanted
    return []


def _source(job: Job) -> str:
    """The program's text; "" where it is not in its folder."""
    name = job.program.name
    path = job.cwd / (name if job.program.kind == "script" else name.replace(".", "/"))
    for file in (path, path.with_suffix(".py"), path / "__main__.py"):
        with contextlib.suppress(OSError):
            if file.stat().st_size <= _SOURCE_BYTES:
                return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _crashed_at(job: Job, attempt: int, rank: int) -> str | None:
    """The program's line at a crash, from the stacks that faulthandler left."""
    told = _tail(job.crash_file(attempt, rank))
    # The main thread comes last.
    for stack in reversed("\n".join(told).split("read 0x")):
        frames = tuple(
            Frame(file, int(line), function) for file, line, function in _FRAME.findall(stack)
        )
        frame = own_frame(frames)
        if frame is not None and "/yoked/ranks/" not in frame.file:
            return f"{frame.file}:{frame.line} in {frame.function}"
    return None


def _disk_full(job: Job) -> bool:
    """Whether the program's folder, or the run's, has no room."""
    for folder in (job.cwd, job.folder):
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < _NO_ROOM_BYTES:
                return True
    return False


def _ending(death: RankExit) -> dict[str, Any]:
    fields: dict[str, Any] = {"time_s": death.time_s}
    if death.exit_code >= 0:
        what = f"ended with exit status {death.exit_code}"
        return {**fields, "exit_code": death.exit_code, "what": what}
    name = _signal_name(-death.exit_code)
    if name != "SIGKILL":
        return {**fields, "signal": name, "what": f"killed by {name}"}
    if death.oom_killed:
        what = "killed by the kernel for want of memory (SIGKILL)"
        return {**fields, "signal": name, "what": what}
    return {
        **fields,
        "signal": name,
        "what": "killed by SIGKILL; if you did not do it, the kernel did, for want of memory",
        "fix": ("if it was memory, a smaller batch takes less; `journalctl -k` names the process",),
    }


def _in_a_meeting(ending: dict[str, Any]) -> dict[str, Any]:
    """What is to be said otherwise of a rank that ended while the ranks met."""
    if ending.get("signal") == "SIGABRT":
        return {
            "kind": NOT_MET,
            "what": "killed by SIGABRT while the ranks connected: bytes that no rank has sent, at "
            "a port of Gloo's, do that",
            "fix": (_STRANGER,),
        }
    # A killed rank would not have met again either.
    return {} if ending.get("signal") else {"kind": NOT_MET}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> list[str]:
    if not path.exists():
        return []
    text = read_tail(path, _TAIL_BYTES).decode(errors="replace")
    # Of a rank that died at once they would be its last words.
    return [line for line in text.splitlines() if line.strip() and not is_noise(line)]

"""Processes that are in a run's way: ranks that outlived their launcher, others' programs at work.

Source: proc_pid_stat(5).
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from yoked.agent.ask import text, user_name
from yoked.agent.jobfolder import ACTIVE, all_jobs
from yoked.agent.others import runs_of_others
from yoked.agent.reap import stale_processes
from yoked.core.proc import (
    LAUNCH_VARIABLE,
    ProcessId,
    ThreadTimes,
    all_processes,
    has_proc,
    thread_times,
)

# Set for what the doctor itself starts.
DOCTOR_VARIABLE = "YOKED_DOCTOR"
_SAMPLE_S = 0.2
_BUSY_CORES = 0.5
# Of the sample, in which a program that computes could run. The doctor itself may take much of the
# cores meanwhile.
_ALWAYS = 0.9
_LAUNCHER = re.compile(
    r"\b(torchrun|torch[./]distributed[./](run|launch)|accelerate\S* launch"
    r"|deepspeed\.launcher)\b|(^|[/ ])deepspeed( |$)"
)
# The first process of a container that may have started ranks itself.
_STARTER = re.compile(r"^(\S*/)?(python[\d.]*|mpirun|mpiexec|prterun|orted|srun)\b")
# Who takes over what loses its parent.
_ADOPTERS = ("systemd", "init", "hostinit", "tini", "dumb-init", "launchd")


class _Sight(NamedTuple):
    """A process with the cores that it used in the sample, or would have used."""

    process: ProcessId
    ppid: int
    cores: float
    memory_bytes: int


def probe_processes() -> dict[str, Any] | None:
    """stale (by `_stale`); runs: of yoked, this user's and others'; busy: other programs that
    compute; small: how many others compute a little, and small_cores: what they use together. None
    where there is no /proc.
    """
    if not has_proc():
        return None
    seen = _look()
    own = _family(seen, os.getpid())
    others = [each for each in seen if each.process.pid not in own]
    stale = _stale(others)
    runs, ranks = _runs(seen)
    passed_over = ranks | {each["pid"] for each in stale}
    busy = [
        {**_describe(each), "cores": round(each.cores, 2)}
        for each in others
        if each.cores >= _BUSY_CORES and each.process.pid not in passed_over
    ]
    small = [
        each.cores
        for each in others
        if 0.0 < each.cores < _BUSY_CORES and each.process.pid not in passed_over
    ]
    return {
        "stale": stale,
        "runs": runs,
        "small": len(small),
        "small_cores": round(sum(small), 2),
        "busy": sorted(busy, key=lambda each: -float(each["cores"])),
    }


def _runs(seen: list[_Sight]) -> tuple[list[dict[str, Any]], set[int]]:
    """Runs that go on: [{run, user, ours, pid, age_s}]; and the numbers of their processes."""
    found = [{**each, "ours": False} for each in runs_of_others()]
    for job in all_jobs():
        program = job.host_program
        if program is not None and program.alive and job.state in ACTIVE:
            spec = job.read("job.json")
            told = {"run": spec.get("trains") or job.run, "user": spec.get("by"), "ours": True}
            found.append({**told, "pid": program.pid, "age_s": program.age_s})
    families = (_descendants(seen, each["pid"]) for each in found)
    return found, set().union(*families)


def _look() -> list[_Sight]:
    """All processes, and what each used of the CPUs in the sample, or would have used."""
    before = {process: process.usage()[0] for process in all_processes()}
    could = {each: times for each in before if each.may_run and (times := thread_times(each.pid))}
    began_s = time.monotonic()
    time.sleep(_SAMPLE_S)
    took_s = time.monotonic() - began_s
    seen = []
    for process, used_s in before.items():
        now_s, memory_bytes = process.usage()
        parent = process.parent
        if parent is not None:
            cores = max(0.0, now_s - used_s) / took_s
            if process in could and _could_run(process.pid, could[process], _ALWAYS * took_s):
                cores = max(cores, 1.0)
            seen.append(_Sight(process, parent, cores, memory_bytes))
    return seen


def _could_run(pid: int, since: ThreadTimes, least_s: float) -> bool:
    """Whether a main thread had something to compute for so long, with a core or without."""
    now = thread_times(pid)
    if now is None:
        return False
    ran_s = now.main_cpu_s - since.main_cpu_s
    return ran_s + now.main_delayed_s - since.main_delayed_s >= least_s


def _family(seen: list[_Sight], root: int) -> set[int]:
    """This agent, what it started, and whatever else a doctor started on this machine."""
    found = _descendants(seen, root)
    doctors = {each.process.pid for each in seen if DOCTOR_VARIABLE in each.process.environment()}
    return found | doctors


def _descendants(seen: list[_Sight], root: int) -> set[int]:
    """A process, its children, and theirs."""
    found = {root}
    while more := {
        each.process.pid for each in seen if each.ppid in found and each.process.pid not in found
    }:
        found |= more
    return found


def _stale(others: list[_Sight]) -> list[dict[str, Any]]:
    """Ours, whose job is over or gone, and others' ranks that lost their launcher.

    launch: None for others'; start_ticks: when it began, which tells it from a later one.
    """
    ours = {process.pid: own.get(LAUNCH_VARIABLE) for process, own in stale_processes()}
    return [
        {
            **_describe(each),
            "cores": round(each.cores, 2),
            "memory_bytes": each.memory_bytes,
            "age_s": each.process.age_s,
            "start_ticks": each.process.start_ticks,
            "launch": ours.get(each.process.pid),
        }
        for each in others
        if each.process.pid in ours or _is_left_behind(each)
    ]


def _is_left_behind(seen: _Sight) -> bool:
    environment = seen.process.environment()
    if LAUNCH_VARIABLE in environment or not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return False
    # With nohup or as a service, a launcher has no other parent either, and goes on as it should;
    # where a scheduler starts it, it has the variables of a rank.
    return _LAUNCHER.search(seen.process.command()) is None and _is_adopted(seen.ppid)


def _is_adopted(ppid: int) -> bool:
    if text(Path(f"/proc/{ppid}/comm")) in _ADOPTERS:
        return True
    try:
        return ppid == 1 and not starts_ranks(ProcessId.of(1).command())
    except ProcessLookupError:
        return False


def starts_ranks(command: str) -> bool:
    """Whether a first process is, or may be, the launcher of its children."""
    return bool(_LAUNCHER.search(command) or _STARTER.search(command))


def _describe(seen: _Sight) -> dict[str, Any]:
    pid, uid = seen.process.pid, seen.process.uid
    return {
        "pid": pid,
        "run": seen.process.environment().get("YOKED_RUN"),
        "command": seen.process.command() or text(Path(f"/proc/{pid}/comm")),
        "user": None if uid is None else user_name(uid),
    }

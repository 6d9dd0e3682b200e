"""What a process of ours may have on this host, and what the kernel's settings allow."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from yoked.agent.ask import named_values, number, text
from yoked.agent.facts import meminfo, memory
from yoked.agent.processors import CGROUPS, affinity, facts, own_groups

# Those of getrlimit(2), without their RLIMIT_.
LIMITS = ("nofile", "nproc", "memlock", "as", "fsize", "data", "stack", "cpu")


def probe_limits() -> dict[str, Any]:
    """[soft, hard] of each limit, None: unlimited; pids of our control groups; umask; pid_max, and
    tasks, how many processes and threads have a number of these.
    """
    return {
        **{name: _limit(f"RLIMIT_{name.upper()}") for name in LIMITS},
        "pids": pids(),
        "pid_max": number(Path("/proc/sys/kernel/pid_max")),
        "tasks": _tasks(text(Path("/proc/loadavg"))),
        "umask": umask(),
    }


def _limit(constant: str) -> list[int | None] | None:
    kind = getattr(resource, constant, None)
    if kind is None:
        return None
    return [None if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(kind)]


def pids(proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> dict[str, int] | None:
    """max and current of the control group that leaves the least; None: no limit."""
    found = []
    for folder in own_groups(proc, cgroups, "pids"):
        most, current = number(folder / "pids.max"), number(folder / "pids.current")
        if most is not None and current is not None:
            found.append({"max": most, "current": current})
    return min(found, key=lambda each: each["max"] - each["current"], default=None)


def _tasks(load: str) -> int | None:
    """How many tasks there are: 0.20 0.18 0.12 1/80 11206, as proc_loadavg(5) has it."""
    words = load.split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdigit() else None


def umask() -> int | None:
    """Read, because asking the C library for it would change it."""
    told = named_values(text(Path("/proc/self/status"))).get("Umask")
    return int(told, 8) if told else None


def probe_memory() -> dict[str, int | None]:
    """available_bytes, swap_free_bytes, overcommit, commit_left_bytes and limit_bytes (of the
    control group; None: it has none).
    """
    told, found = meminfo(), memory()
    limited = "MemTotal" in told and found["memory_bytes"] != told["MemTotal"]
    left = told["CommitLimit"] - told["Committed_AS"] if "CommitLimit" in told else None
    return {
        "available_bytes": found["memory_available_bytes"],
        "swap_free_bytes": told.get("SwapFree"),
        "overcommit": number(Path("/proc/sys/vm/overcommit_memory")),
        "commit_left_bytes": None if left is None else max(0, left),
        "limit_bytes": found["memory_bytes"] if limited else None,
    }


def probe_processors() -> dict[str, Any]:
    """online and affinity: how many logical CPUs there are, and we may use; quota_cores: CPUs'
    worth of time that control groups grant, None: no limit; fast_cores and slow_cores: physical.
    nice and policy ("idle", "batch", "other"): what ranks inherit of this agent; tracer: pid and
    command of who follows its system calls, None: nobody does. of_init: the CPUs that process 1 may
    use, from which nobody who comes in by ssh is kept by chance.
    """
    found = facts()
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": _policy(),
        "tracer": _tracer(),
        "online": found["threads"],
        "affinity": len(affinity()),
        "of_init": allowed_to(1),
        "quota_cores": found["cpu_quota"],
        "fast_cores": found["fast_cores"],
        "slow_cores": found["cores"] - found["fast_cores"],
    }


def _policy() -> str | None:
    """The scheduling policy of this process: sched(7)."""
    if not hasattr(os, "sched_getscheduler"):
        return None
    names = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle"}
    # SCHED_RESET_ON_FORK may be among its bits.
    return names.get(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, "realtime")


def allowed_to(pid: int) -> int | None:
    """How many CPUs a process may use: `Cpus_allowed` of proc_pid_status(5), a mask in hex."""
    mask = named_values(text(Path(f"/proc/{pid}/status"))).get("Cpus_allowed", "")
    return bin(int(mask.replace(",", ""), 16)).count("1") if mask else None


def _tracer() -> dict[str, Any] | None:
    told = named_values(text(Path("/proc/self/status"))).get("TracerPid", "0")
    if not told.isdigit() or told == "0":
        return None
    return {"pid": int(told), "command": text(Path(f"/proc/{told}/comm"))}


def probe_kernel() -> dict[str, Any] | None:
    """ptrace_scope, conntrack_count, conntrack_max and rp_filter {interface: n}."""
    settings = Path("/proc/sys")
    if not settings.is_dir():
        return None
    filters = (settings / "net/ipv4/conf").glob("*/rp_filter")
    return {
        "ptrace_scope": number(settings / "kernel/yama/ptrace_scope"),
        "conntrack_count": number(settings / "net/netfilter/nf_conntrack_count"),
        "conntrack_max": number(settings / "net/netfilter/nf_conntrack_max"),
        "rp_filter": {path.parent.name: number(path) for path in sorted(filters)},
    }

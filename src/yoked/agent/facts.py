"""What a host is: read from /proc, /sys and the like, in milliseconds, without torch.

What a system does not tell is null; nothing here fails because of it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from yoked.agent import gpus, processors
from yoked.agent.ask import named_values, number, run_quiet, sysctl, text, user_name
from yoked.agent.server import Call
from yoked.core.fs import free_bytes
from yoked.core.proc import has_proc
from yoked.paths import cache_root, home, state_root


def answer_facts(call: Call) -> dict[str, Any]:
    """The facts that cost next to nothing. Sizes are in bytes.

    cores are physical, threads logical; usable_cores is what a job may fill: of the fast cores,
    those that affinity and control group leave. machine: equal for two names of one machine.
    has_proc: whether processes are told of as on Linux, which supervision needs.
    """
    del call
    own, state, cache = home(), state_root(), cache_root()
    return {
        "hostname": socket.gethostname(),
        "machine": machine_identity(),
        "os": platform.system(),
        "has_proc": has_proc(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        **processors.facts(),
        **memory(),
        "gpus": gpus.find_gpus(),
        "free_bytes": {
            "home": free_bytes(own),
            "state": free_bytes(state),
            "cache": free_bytes(cache),
        },
        "state": str(state),
        "cache": str(cache),
        "home": str(own),
        "path": os.environ.get("PATH", os.defpath),
        "user": user_name(os.getuid()),
        "uid": os.getuid(),
        "on_battery": on_battery(),
    }


def memory(proc: Path = Path("/proc"), cgroups: Path = processors.CGROUPS) -> dict[str, int | None]:
    """memory_bytes and memory_available_bytes, both no more than the control group allows."""
    told = meminfo(proc)
    mac = sysctl("hw.memsize")
    total = told.get("MemTotal") or (int(mac) if mac.isdigit() else None)
    available = told.get("MemAvailable", told.get("MemFree"))
    for folder in processors.own_groups(proc, cgroups, "memory"):
        limit = number(folder / "memory.max") or number(folder / "memory.limit_in_bytes")
        used = number(folder / "memory.current") or number(folder / "memory.usage_in_bytes")
        # Version 1 says "no limit" with a number beyond all machines.
        if total is None or limit is None or limit >= total:
            continue
        total = limit
        available = min(available or limit, max(0, limit - (used or 0)))
    return {"memory_bytes": total, "memory_available_bytes": available}


def meminfo(proc: Path = Path("/proc")) -> dict[str, int]:
    """The sizes in /proc/meminfo, in bytes; none where there is no such file."""
    told = named_values(text(proc / "meminfo"))
    return {name: 1024 * int(size.split()[0]) for name, size in told.items()}


def oom_kills(proc: Path = Path("/proc")) -> int | None:
    """Processes that the kernel has ended for want of memory, since it started; None: untold."""
    # Source: linux/vm_event_item.h, OOM_KILL; a limit of a cgroup counts too.
    for line in text(proc / "vmstat").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return None


def on_battery(supplies: Path = Path("/sys/class/power_supply")) -> bool | None:
    """Whether this host runs on its battery; None: it has none, or does not tell."""
    if sys.platform == "darwin":
        return battery_of_pmset(run_quiet(["pmset", "-g", "batt"]))
    kinds = {path: text(path / "type") for path in sorted(supplies.glob("*"))}
    batteries = [
        path
        for path, kind in kinds.items()
        # A mouse has a battery too.
        if kind == "Battery" and text(path / "scope") != "Device"
    ]
    if not batteries:
        return None
    mains = [text(path / "online") for path, kind in kinds.items() if kind == "Mains"]
    if mains:
        return "1" not in mains
    return any(text(path / "status") == "Discharging" for path in batteries)


def battery_of_pmset(said: str) -> bool | None:
    """What `pmset -g batt` of macOS means."""
    if "InternalBattery" not in said:
        return None
    return "'Battery Power'" in said


def machine_identity(proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> str:
    """16 hex digits: alike for every login to one machine, and another on every other.

    Containers and virtual hosts share their machine's ids, but neither its processes nor its
    network: so these count too. Nothing of a machine can be read back from it.
    """
    if sys.platform == "darwin":
        parts = [sysctl("kern.uuid"), sysctl("kern.bootsessionuuid")]
    else:
        parts = [
            text(etc / "machine-id"),
            text(proc / "sys/kernel/random/boot_id"),
            _namespace(proc / "self/ns/net"),
            _namespace(proc / "self/ns/pid"),
        ]
    if not any(parts):
        parts = [socket.gethostname()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _namespace(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - it leads to nothing that a Path could be
    except OSError:
        return ""

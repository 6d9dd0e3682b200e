"""What of labs is on this machine: processes, namespaces, mounts, links, control groups, files."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

Census = dict[str, set[str]]
SETTLE_S = 10.0


def take(labs: Path) -> Census:
    """All that there is now; labs: the folder in which each lab has its own."""
    return {
        "processes": _processes(),
        "namespaces": _namespaces(),
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "links": set(os.listdir("/sys/class/net")),
        "cgroups": _groups(),
        "files": {str(path) for path in labs.rglob("*") if path != labs / ".lock"},
    }


def added(before: Census, labs: Path) -> dict[str, list[str]]:
    """What is there now and was not; the kernel and dying processes get some time."""
    end = time.monotonic() + SETTLE_S
    while True:
        now = take(labs)
        more = {kind: sorted(now[kind] - before[kind]) for kind in now}
        if not any(more.values()) or time.monotonic() > end:
            return more
        time.sleep(0.1)


def kernel_objects() -> dict[str, int]:
    """How many the kernel itself counts, also those that no process and no file shows.

    Empty where /proc/slabinfo may not be read. Source: slabinfo(5), active objects.
    """
    counts = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/slabinfo").read_text().splitlines():
            name, *figures = line.split()
            if name in ("net_namespace", "mnt_cache", "pid_namespace"):
                counts[name] = int(figures[0])
    return counts


def _processes() -> set[str]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"YOKED_LAB=" in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_text().replace("\0", " ")
                found.add(f"{folder.name} {command}")
    return found


def _namespaces() -> set[str]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for kind in ("mnt", "net", "pid", "uts", "ipc", "user"):
                found.add(os.readlink(folder / "ns" / kind))
    return found


def _groups() -> set[str]:
    return {
        f"{folder}/{name}"
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith("yoked-lab-")
    }

"""The CPU of this host: its model, its cores, and how much of them a job may have."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import number, sysctl, text

CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
# Boost bins of equal cores differ by a few percent; efficiency cores by far more.
_AS_FAST = 0.85


def facts() -> dict[str, Any]:
    """cpu_model, cores, threads, fast_cores, cpu_quota and usable_cores; see agent.facts."""
    if sys.platform == "darwin":
        return mac_facts({name: sysctl(name) for name in MAC_NAMES})
    return linux_facts(Path("/proc"), CPUS, CGROUPS, affinity())


def cpu_type() -> str:
    """Architecture, features and C library: what decides whether machine code runs elsewhere."""
    features = sysctl("machdep.cpu.brand_string")  # "" elsewhere than on a Mac
    if platform.system() == "Linux":
        for line in text(Path("/proc/cpuinfo")).splitlines():
            if line.startswith(("flags", "Features")):
                features = line.partition(":")[2].strip()
                break
    return " ".join([platform.system(), platform.machine(), *platform.libc_ver(), features])


def affinity() -> tuple[int, ...]:
    """The logical CPUs that this process may use: all of them on a system without affinity."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def linux_facts(proc: Path, cpus: Path, cgroups: Path, allowed: tuple[int, ...]) -> dict[str, Any]:
    """The CPU's facts from folders like /proc, /sys/devices/system/cpu and /sys/fs/cgroup.

    allowed: the logical CPUs that affinity leaves.
    """
    online = _range(text(cpus / "online")) or allowed
    cores = first_of_each_core(cpus, online)
    mine = first_of_each_core(cpus, allowed)
    fast = fast_cores(cpus, mine)
    quota = cpu_quota(proc, cgroups)
    usable = len(fast) if quota is None else max(1, min(len(fast), int(quota + 0.5)))
    return {
        "cpu_model": cpu_model(text(proc / "cpuinfo")),
        "cores": len(cores),
        "threads": len(online),
        "fast_cores": len(fast_cores(cpus, cores)),
        "cpu_quota": quota,
        "usable_cores": usable,
    }


def cpu_model(cpuinfo: str) -> str:
    """The CPU's name in /proc/cpuinfo; Arm kernels have none, and say the architecture instead."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware", "cpu model"):
            return " ".join(value.split())
    return platform.machine()


def _range(written: str) -> tuple[int, ...]:
    """The numbers in `0-3,8`."""
    found: list[int] = []
    for part in written.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def first_of_each_core(cpus: Path, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """One logical CPU of each physical core."""
    seen: set[int] = set()
    firsts = []
    for each in numbers:
        siblings = _range(text(cpus / f"cpu{each}/topology/thread_siblings_list")) or (each,)
        if seen.isdisjoint(siblings):
            firsts.append(each)
            seen.update(siblings)
    return tuple(firsts)


def fast_cores(cpus: Path, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Of these CPUs, those that are not efficiency cores; all of them where no file tells.

    Told by capacity (Arm) or highest frequency (x86), from the first file that all of them have.
    """
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {each: number(cpus / f"cpu{each}" / name) for each in numbers}
        known = [speed for speed in speeds.values() if speed is not None]
        if numbers and len(known) == len(numbers):
            least = _AS_FAST * max(known)
            return tuple(each for each in numbers if (speeds[each] or 0) >= least)
    return numbers


def cpu_quota(proc: Path, cgroups: Path) -> float | None:
    """CPUs' worth of time that our control groups grant; None: no limit."""
    quotas: list[float] = []
    for folder in own_groups(proc, cgroups, "cpu"):
        words = text(folder / "cpu.max").split() or [
            text(folder / "cpu.cfs_quota_us"),
            text(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def own_groups(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """Folders of our control group and those above it: version 2, or the controller's of 1."""
    for line in text(proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = cgroups / names if names else cgroups
        if names and not root.is_dir():
            root = cgroups / controller
        folder = root / path.lstrip("/")
        # In a container the path may be one of the machine, and its own group the root.
        while root in folder.parents:
            yield folder
            folder = folder.parent
        yield root


MAC_NAMES = (
    "machdep.cpu.brand_string",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "hw.perflevel0.physicalcpu",
)


def mac_facts(told: dict[str, str]) -> dict[str, Any]:
    """The CPU's facts from values of macOS's sysctl; told: by name, "" for what is not there."""
    threads = int(told["hw.logicalcpu"] or os.cpu_count() or 1)
    cores = int(told["hw.physicalcpu"] or threads)
    # Intel's Macs have no levels.
    fast = int(told["hw.perflevel0.physicalcpu"] or cores)
    return {
        "cpu_model": told["machdep.cpu.brand_string"] or platform.machine(),
        "cores": cores,
        "threads": threads,
        "fast_cores": fast,
        "cpu_quota": None,
        "usable_cores": fast,
    }

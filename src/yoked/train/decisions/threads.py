"""How many threads a rank uses, and on which cores."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from yoked.agent.processors import CGROUPS, cpu_quota
from yoked.errors import UsageError
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions.decision import Decision

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cores:
    """Logical CPUs that this process may use: one of each fast physical core, and the rest.

    fast: by number; hybrid: whether slower cores (efficiency cores) were left out of it.
    quota: CPUs whose time the control group allows; None: all of them.
    """

    fast: tuple[int, ...]
    allowed: tuple[int, ...]
    hybrid: bool
    quota: float | None = None


@dataclass(frozen=True)
class ThreadPlan:
    """Threads of one rank; cores: where to pin it, None: nowhere."""

    threads: int
    cores: tuple[int, ...] | None
    reason: str


def read_cores(
    root: Path = CPUS, allowed: tuple[int, ...] | None = None, quota: float | None = None
) -> Cores:
    """The cores of this host, from sysfs where there is one.

    root: a folder like /sys/devices/system/cpu. allowed: logical CPUs, default: the affinity.
    quota: CPUs, default: the control group's.
    Hybrid CPUs are recognised by unequal cpu_capacity (Arm) or maximal frequency (x86).
    """
    if allowed is None:
        allowed = (
            tuple(sorted(os.sched_getaffinity(0)))
            if hasattr(os, "sched_getaffinity")
            else tuple(range(psutil.cpu_count() or 1))
        )
    if quota is None and sys.platform == "linux":
        quota = cpu_quota(Path("/proc"), CGROUPS)
    seen: set[str] = set()
    first_of_core: list[int] = []
    for cpu in allowed:
        siblings = _read(root / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            first_of_core.append(cpu)
    speeds = _speeds(root, first_of_core)
    # Boost bins of equal cores differ by a few percent; efficiency cores by far more.
    fast = tuple(cpu for cpu in first_of_core if speeds[cpu] >= 0.85 * max(speeds.values()))
    return Cores(fast, allowed, len(fast) < len(first_of_core), quota)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _speeds(root: Path, cpus: list[int]) -> dict[int, int]:
    """Relative speeds, from the first file that all the CPUs have; all alike without one."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        texts = {cpu: _read(root / f"cpu{cpu}/{name}") or "" for cpu in cpus}
        if all(text.isdecimal() for text in texts.values()):
            return {cpu: int(text) for cpu, text in texts.items()}
    return dict.fromkeys(cpus, 1)


def plan_threads(
    cores: Cores,
    local_rank: int,
    local_ranks: int,
    asked: int | None,
    *,
    chosen_outside: int | None,
) -> ThreadPlan:
    """Divide a host's fast cores among its ranks.

    asked: `--threads`; chosen_outside: OMP_NUM_THREADS, when the user (not torchrun) set it.
    Ranks are pinned only on hybrid CPUs, to keep them off the efficiency cores.
    """
    if asked is not None:
        if asked > len(cores.allowed):
            raise UsageError(
                f"--threads {asked}, but this process may use {len(cores.allowed)} CPUs",
                fix=f"--threads {len(cores.allowed)} or fewer, or --threads auto",
            )
        return ThreadPlan(asked, None, "asked for with --threads")
    if chosen_outside is not None:
        return ThreadPlan(chosen_outside, None, "OMP_NUM_THREADS")
    mine = cores.fast[local_rank::local_ranks] or (cores.fast[local_rank % len(cores.fast)],)
    what = "performance cores" if cores.hybrid else "physical cores"
    among = "" if local_ranks == 1 else f" among {local_ranks} ranks"
    reason = f"{len(cores.fast)} {what}{among}"
    threads = len(mine)
    if cores.quota is not None and math.ceil(cores.quota / local_ranks) < threads:
        # More threads would all be stopped together, for a part of each tenth of a second.
        threads = max(1, math.ceil(cores.quota / local_ranks))
        reason = f"the control group allows the time of {cores.quota:g} CPUs{among}"
    return ThreadPlan(threads, mine if cores.hybrid else None, reason)


def set_threads(config: TrainConfig, rank_info: RankInfo) -> tuple[int, Decision]:
    """Set the number of threads of this rank, and pin it where that helps."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    outside = int(text) if text.isdecimal() and int(text) > 0 else None
    # torchrun sets 1 when nobody said anything: that is not a choice.
    if outside == 1 and rank_info.local_world_size > 1:
        outside = None
    plan = plan_threads(
        read_cores(),
        rank_info.local_rank,
        rank_info.local_world_size,
        config.thread_count,
        chosen_outside=outside,
    )
    if plan.cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan.cores)
    torch.set_num_threads(plan.threads)
    pinned = f", pinned to CPUs {', '.join(map(str, plan.cores))}" if plan.cores else ""
    return plan.threads, Decision("threads", str(plan.threads), plan.reason + pinned)

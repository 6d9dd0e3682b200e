"""How many threads a rank uses, and on which cores."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from yoked.agent import processors
from yoked.agent.processors import (
    CGROUPS,
    CPUS,
    affinity,
    cpu_quota,
    fast_cores,
    first_of_each_core,
)
from yoked.errors import UsageError
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions.decision import Decision


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


def read_cores(root: Path = CPUS) -> Cores:
    """The cores of this host that this process may use. root: like /sys/devices/system/cpu."""
    allowed = affinity()
    if sys.platform == "darwin":
        # Which are which no file tells: macOS has threads of its fast cores' number run there.
        found = processors.facts()
        fast_count, cores_count = int(found["fast_cores"]), int(found["cores"])
        return Cores(allowed[:fast_count], allowed, fast_count < cores_count)
    cores = first_of_each_core(root, allowed)
    fast = fast_cores(root, cores)
    return Cores(fast, allowed, len(fast) < len(cores), cpu_quota(Path("/proc"), CGROUPS))


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


def set_threads(config: TrainConfig, rank_info: RankInfo) -> Decision:
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
    return Decision("threads", str(plan.threads), plan.reason + pinned)

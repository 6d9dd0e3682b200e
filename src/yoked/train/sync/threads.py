"""Gloo's own threads and the training thread, which share a core where all cores compute.

Each arriving packet wakes Gloo's thread, and Linux lets a woken thread interrupt one that
computes: some thousand times a step on a host of one core. Under SCHED_BATCH (sched(7)) a woken
thread waits for the end of a time slice, a few milliseconds, and then takes all that has arrived.
"""

from __future__ import annotations

import os
from pathlib import Path

# As Gloo names them (gloo/transport/tcp/loop.cc); Linux keeps 15 letters.
LOOP_NAME = "gloo_tcp_loop"


def batch_network_threads(tasks: Path = Path("/proc/self/task")) -> int:
    """Put Gloo's network threads of this process under SCHED_BATCH; the number of them.

    0 where there are none, or no Linux. Never fails: it is a matter of speed alone.
    """
    changed = 0
    for task in tasks.glob("[0-9]*"):
        try:
            if (task / "comm").read_text().strip() != LOOP_NAME:
                continue
            os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
        except (OSError, AttributeError):
            continue
        changed += 1
    return changed

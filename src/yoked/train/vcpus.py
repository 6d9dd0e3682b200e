"""Virtual processors, kept awake while ranks wait for each other.

A virtual processor that halts is its hypervisor's to place anew, be it beside a busy one on the
same core. While others use the machine, both ranks of a run then compute 1.1 to 1.7 times as long
in many of their steps (`benchmarks/waiting`). So on a virtual machine a thread for each processor
of a rank goes round in a circle. It runs under SCHED_IDLE: whatever else of its session or control
group wants the processor has it at once; another session's shares it as with a rank that computes.

Source: sched(7), also "The autogroup feature"; halting and its price, the kernel's
Documentation/virt/guest-halt-polling.rst.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from yoked.agent.processors import CGROUPS, cpu_quota
from yoked.spare import give_way
from yoked.train import kernels
from yoked.train.choose import Choice

BUSY, ASLEEP = "busy", "asleep"


def choose_waiting(asked: str, *, ranks: int, on_cpu: bool) -> Choice:
    """How this rank waits for others. asked: `--waiting`; ranks: of the run."""
    if ranks == 1:
        return _choice(ASLEEP, "there is no other rank to wait for")
    if asked == ASLEEP:
        return _choice(ASLEEP, "asked for with --waiting")
    if asked == "auto" and not on_cpu:
        return _choice(ASLEEP, "the processor does not compute")
    if sys.platform != "linux" or not kernels.kernels().available:
        return _choice(ASLEEP, "without Linux or the fused passes nothing keeps a processor awake")
    if asked == BUSY:
        return _choice(BUSY, "asked for with --waiting")
    if "hypervisor" not in kernels.cpu_identity().split():
        return _choice(ASLEEP, "no virtual machine is known here")
    if cpu_quota(Path("/proc"), CGROUPS) is not None:
        return _choice(ASLEEP, "a control group limits the processor's time")
    return _choice(BUSY, "a virtual machine may move processors that sleep")


def _choice(value: str, reason: str) -> Choice:
    return Choice("waiting", value, reason)


@contextmanager
def kept_awake(threads: int) -> Iterator[None]:
    """Keep so many processors awake; above 0 only where `choose_waiting` said busy."""
    library, over = kernels.kernels().library, ctypes.c_int(0)

    def stay() -> None:
        assert library is not None
        # A sandbox may forbid it; then this must not run.
        with suppress(PermissionError):
            give_way()
            library.stay_awake(ctypes.byref(over))

    stayers = [threading.Thread(target=stay, name="awake", daemon=True) for _ in range(threads)]
    for each in stayers:
        each.start()
    try:
        yield
    finally:
        over.value = 1
        for each in stayers:
            each.join()

"""Virtual processors, kept awake while ranks wait for each other.

A virtual processor that halts is its hypervisor's to place anew, be it beside a busy one on the
same core. While others use the machine, both ranks of a run then compute 1.1 to 1.7 times as long
in many of their steps (`benchmarks/waiting`). So on a virtual machine a thread for each processor
of a rank goes round in a circle while the rank waits for a message, and sleeps while it computes.
It runs under SCHED_IDLE: whatever else of its session or control group wants the processor has it
at once; another session's shares it as with a rank that computes.

Source: sched(7), also "The autogroup feature"; futex(2); halting and its price, the kernel's
Documentation/virt/guest-halt-polling.rst.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from yoked.agent.processors import CGROUPS, cpu_quota
from yoked.spare import give_way
from yoked.train import kernels
from yoked.train.choose import Choice
from yoked.train.sync.wire import Around

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


# As in waiting.c.
_COMPUTING, _WAITING, _OVER = 0, 1, 2


@contextmanager
def kept_awake(threads: int) -> Iterator[Around]:
    """What keeps so many processors awake while it is entered, by one thread at a time.

    threads: above 0 only where `choose_waiting` said busy.
    """
    library = kernels.kernels().library
    if not threads or library is None:
        yield nullcontext
        return
    moment = ctypes.c_int(_COMPUTING)

    def stay() -> None:
        # A sandbox may forbid it; then this must not run.
        with suppress(PermissionError):
            give_way()
            library.stay_awake(ctypes.byref(moment))

    def become(now: int) -> None:
        library.set_moment(ctypes.byref(moment), now)

    @contextmanager
    def waiting() -> Iterator[None]:
        become(_WAITING)
        try:
            yield
        finally:
            become(_COMPUTING)

    stayers = [threading.Thread(target=stay, name="awake", daemon=True) for _ in range(threads)]
    for each in stayers:
        each.start()
    try:
        yield waiting
    finally:
        become(_OVER)
        for each in stayers:
            each.join()

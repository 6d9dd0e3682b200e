"""Loading what takes seconds: in spare time, and without a search for garbage.

Standard library only: it runs on any host.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# In the environment of a host program: whether it loads torch that way.
SPARE_TIME = "YOKED_SPARE_TIME"


@contextmanager
def without_collector() -> Iterator[None]:
    """Import torch here: of 200,000 new objects none is garbage; looking is a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Take steps here: they make no reference cycles worth a collection, of up to 0.5 s."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def give_way() -> None:
    """Put the calling thread under SCHED_IDLE, for good; without Linux, do nothing.

    It gives way to what belongs to its session and control group. Other sessions are its equals
    where the kernel groups by session. Source: sched(7), "The autogroup feature".
    """
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def in_spare_time(act: Callable[[], object]) -> None:
    """Act in a thread that gives way (`give_way`), and wait for it; raises what it raises.

    The policy is of one thread, and could not be taken back: what comes after is as before.
    Where all cores are busy it takes very long. Without Linux, it is done like anything else.
    """
    problems: list[BaseException] = []

    def work() -> None:
        try:
            give_way()
            act()
        except BaseException as problem:  # noqa: BLE001 - raised again below
            problems.append(problem)

    thread = threading.Thread(target=work, name="spare time")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]

"""Work for which there is time only while nobody else wants the processor.

Standard library only: it runs on any host.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

# In the environment of a host program: whether it loads torch that way.
SPARE_TIME = "YOKED_SPARE_TIME"


def in_spare_time(act: Callable[[], object]) -> None:
    """Act in a thread under SCHED_IDLE (sched(7)), and wait for it; raises what it raises.

    The policy is of one thread, and could not be taken back: what comes after is as before.
    Where all cores are busy it takes very long. Without Linux, it is done like anything else.
    """
    problems: list[BaseException] = []

    def work() -> None:
        try:
            if sys.platform == "linux":
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            act()
        except BaseException as problem:  # noqa: BLE001 - raised again below
            problems.append(problem)

    thread = threading.Thread(target=work, name="spare time")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]

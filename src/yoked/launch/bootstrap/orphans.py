"""What a program's ranks leave behind ends with them, wherever they put it.

A rank ends with its process group, and a supervisor ends at last what has the launch's variables. A
child that was forked twice has a session of its own, and lives into the next attempt, with its
ports and its memory; one without the launch's variables outlives the run. The kernel gives both to
this process, once it has asked for orphans of those below it (Linux: prctl(2),
PR_SET_CHILD_SUBREAPER). Elsewhere nothing is adopted, and nothing ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from yoked.core.proc import LAUNCH_VARIABLE, ProcessId, all_processes
from yoked.launch.bootstrap.rank import ATTEMPT
from yoked.parent_death import adopt_orphans

# A process that is killed leaves its own children to us.
_END_S = 2.0
_POLL_S = 0.02


class Orphans:
    """Those of this process, which is the host program of a launch, and of no other."""

    def __init__(self, launch_id: str) -> None:
        self._launch_id = launch_id
        self._adopts = adopt_orphans()

    def end(self) -> list[int]:
        """End all that ranks left; the numbers of those processes. Called when no rank is left."""
        ended: set[int] = set()
        until_s = time.monotonic() + _END_S
        while self._adopts and time.monotonic() < until_s:
            found = [process for process in all_processes() if self._is_of_ranks(process)]
            # Another user's, by sudo, is out of reach.
            sent = [process.pid for process in found if process.signal(signal.SIGKILL)]
            if not sent:
                break
            ended.update(sent)
            time.sleep(_POLL_S)
        for pid in ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return sorted(ended)

    def _is_of_ranks(self, process: ProcessId) -> bool:
        if process.parent != os.getpid():
            return False
        environment = process.environment()
        # What this process started itself, such as the store, has its variables and no rank's.
        own = environment.get(LAUNCH_VARIABLE) == self._launch_id and ATTEMPT not in environment
        return not own

"""No process of ours outlives the one that started it, however that one ends.

Run as a program, it ties itself to its parent and becomes the command that is given:

    python -m yoked.parent_death PARENT_PID COMMAND ...

Standard library only: it starts in milliseconds and on any host.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent dies; survives exec, not fork.

    SIGKILL rather than SIGTERM: a rank that hangs in a collective acts on no other, and
    checkpoints are whole at every instant. Only Linux has it.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> bool:
    """Ask the kernel for the orphans of this process's descendants; whether it gives them.

    They have this process for their parent, however often they were forked. Only Linux has it.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def main(argv: list[str]) -> None:
    """Tie this process to the parent named first and exec the rest."""
    parent_pid, *command = argv
    die_with_parent(int(parent_pid))
    os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])

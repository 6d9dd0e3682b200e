"""The sockets of this process, whoever in it made them. Linux alone. Source: proc_pid_fd(5)."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress


def own_sockets() -> Iterator[socket.socket]:
    """A second descriptor of each internet stream socket of this process; the caller closes it.

    None where /proc is hidden.
    """
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError:
        return
    for name in names:
        # One that was closed meanwhile is none any more.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            if found.family in (socket.AF_INET, socket.AF_INET6) and (
                found.type == socket.SOCK_STREAM
            ):
                yield found
            else:
                found.close()

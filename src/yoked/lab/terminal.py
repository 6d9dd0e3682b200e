"""A terminal of the host's own for a shell in it. Standard library only.

Runs inside the host, from its source text: nothing of yoked need be there. Its arguments are the
command. The shell sees a terminal of the host (/dev/pts there), with job control and the size of
the window outside; bytes are carried between the two.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import sys
import termios
import tty

_PIECE_BYTES = 1 << 14


def main() -> int:
    """Start the command on a new terminal; returns its exit status."""
    child, master = pty.fork()
    if child == 0:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - an argument list, no shell

    def resize(*_: object) -> None:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)

    signal.signal(signal.SIGWINCH, resize)
    resize()
    before = termios.tcgetattr(0)
    try:
        # What was typed while the shell started is for the shell.
        tty.setraw(0, termios.TCSADRAIN)
        _carry(master)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _carry(master: int) -> None:
    """Bytes both ways, until the terminal inside has no program left."""
    sources = [master, 0]
    while True:
        ready = select.select(sources, [], [])[0]
        # Linux says EIO when the last program has closed the other side.
        with contextlib.suppress(OSError):
            if 0 in ready:
                piece = os.read(0, _PIECE_BYTES)
                if piece:
                    _write_all(master, piece)
                else:
                    sources.remove(0)
        if master in ready:
            try:
                piece = os.read(master, _PIECE_BYTES)
            except OSError:
                return
            if not piece:
                return
            _write_all(1, piece)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main())

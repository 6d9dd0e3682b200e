"""The zipapp's main: serve over standard streams, `supervise` a job's folder, or `stand`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from yoked.agent.calls import HANDLERS
from yoked.agent.protocol import GREETING
from yoked.agent.server import Server

# mallopt(3), of glibc.
_M_ARENA_MAX = -8


def serve_standard_streams(source: BinaryIO, token: str) -> None:
    """Answer calls on this process's streams, which nothing else may write to.

    source: standard input as far as it has been read. token: chosen by the controller, to greet.
    """
    # A start file may have left them such that who writes much at once loses the rest.
    for descriptor in (1, 2):
        os.set_blocking(descriptor, True)
    sink = os.fdopen(os.dup(1), "wb")
    # A stray print must not end up between two messages.
    os.dup2(2, 1)
    sink.write(f"{GREETING} {token}\n".encode())
    sink.flush()
    _spare_addresses()
    _outlive_signals()
    Server(source, sink, HANDLERS).serve()


def _spare_addresses() -> None:
    """Have all threads allocate from one arena: glibc reserves 64 MB of addresses for each of them,
    and under `ulimit -v` an agent that answers ten calls at once would get no more.
    """
    # A Python that was built without libffi has no ctypes, and macOS no mallopt.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _outlive_signals() -> None:
    """Live on where somebody signals all programs of Python; the end of our stream ends us."""
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name)
        # What is started has them as usual again: a handler does not outlast an exec.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: None)


def main(argv: list[str]) -> int:
    """Run the part that the first argument names; returns the exit status."""
    part, *rest = argv
    if part == "supervise":
        from yoked.agent.supervisor import supervise

        return supervise(Path(rest[0]))
    if part == "stand":
        from yoked.agent.leftalone import stand

        return stand(int(rest[0]))
    serve_standard_streams(sys.stdin.buffer, rest[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

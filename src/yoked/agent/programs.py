"""Run a program on this host: an argument vector, no shell, a session of its own.

It ends with the call: cancelled, past its time, or when the controller is gone, its whole process
group is killed. What it leaves running in its group when it ends is killed too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from yoked.agent.server import Call
from yoked.core.faults import fault

_KEPT_BYTES = 20_000
_FIRST_POLL_S, _LAST_POLL_S = 0.001, 0.05
# A grandchild in a session of its own may hold the pipes open.
_DRAIN_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a program ended. exit_status: None when `signal` ended it.

    stdout, stderr: their last bytes. late: it was killed because its time was over.
    """

    exit_status: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    late: bool

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.exit_status == 0

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {
            "exit_status": self.exit_status,
            "signal": self.signal,
            "stdout": self.stdout.decode(errors="replace"),
            "stderr": self.stderr.decode(errors="replace"),
            "late": self.late,
        }


def answer_run(call: Call) -> dict[str, Any]:
    """Run `argv`; data is its standard input.

    args: argv, whose first word may begin with `~/`; and optionally limit_s.
    Raises HostError for a program that is not there.
    """
    return run_program(
        call.args["argv"],
        stdin=call.data,
        limit_s=call.args.get("limit_s"),
        cancelled=call.cancelled,
    ).to_json()


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str | None = None,
    stdin: bytes = b"",
    limit_s: float | None = None,
    cancelled: threading.Event | None = None,
    on_line: Callable[[str], None] | None = None,
    pass_fds: Sequence[int] = (),
) -> Outcome:
    """Run a program to its end. env: over this process's own; None removes a variable. on_line:
    called with each line of its stdout, as it comes.

    Raises HostError when it cannot be started.
    """
    process = _start(argv, env, cwd, pass_fds)
    assert process.stdin is not None
    out = _Stream(process.stdout, on_line)
    err = _Stream(process.stderr, None)
    feeder = threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True)
    feeder.start()
    _alive.add(process)
    try:
        late = _await_end(process, limit_s, cancelled or threading.Event())
    finally:
        _kill_group(process)
        status = process.wait()
        _alive.discard(process)
    outcome = Outcome(
        status if status >= 0 else None, -status if status < 0 else None, out.end(), err.end(), late
    )
    feeder.join(timeout=_DRAIN_S)
    return outcome


def _start(
    argv: Sequence[str],
    env: Mapping[str, str | None] | None,
    cwd: str | None,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    program = os.path.expanduser(argv[0])  # noqa: PTH111 - a Path would turn ./x into x
    merged = {**os.environ, **(env or {})}
    try:
        return subprocess.Popen(
            [program, *argv[1:]],
            env={name: value for name, value in merged.items() if value is not None},
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as problem:
        raise fault("program-missing", program=program, reason=problem.strerror) from problem


def _await_end(
    process: subprocess.Popen[bytes], limit_s: float | None, cancelled: threading.Event
) -> bool:
    """Wait for the end, or for a reason to kill; returns whether its time was over."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    poll_s = _FIRST_POLL_S
    while not _has_ended(process):
        if deadline_s is not None and time.monotonic() >= deadline_s:
            return True
        if cancelled.wait(poll_s):
            return False
        poll_s = min(2 * poll_s, _LAST_POLL_S)
    return False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended. Where the system can, it is not reaped: its number stays ours."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _feed(sink: IO[bytes], content: bytes) -> None:
    # A program need not read what it is given.
    with contextlib.suppress(OSError):
        sink.write(content)
    with contextlib.suppress(OSError):
        sink.close()


class _Stream:
    """Reads a stream to its end and keeps the last bytes."""

    def __init__(self, source: IO[bytes] | None, on_line: Callable[[str], None] | None) -> None:
        assert source is not None
        self._source = source
        self._on_line = on_line
        self._kept = b""
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def end(self) -> bytes:
        """What was kept, once all has come."""
        self._thread.join(timeout=_DRAIN_S)
        if not self._thread.is_alive():
            self._source.close()
        return self._kept

    def _pump(self) -> None:
        for line in iter(lambda: self._source.readline(65_536), b""):
            self._kept = (self._kept + line)[-_KEPT_BYTES:]
            if self._on_line is not None:
                self._on_line(line.decode(errors="replace").rstrip())


_alive: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _kill_all() -> None:
    """The agent ends when its controller is gone, and what it ran for it ends too."""
    for process in list(_alive):
        _kill_group(process)

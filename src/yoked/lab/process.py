"""Which process is meant: a PID alone may have been given to another since.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Python's stdlib and this package alone: starts in 15 ms, and works where site-packages do not.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from yoked.lab import {0}; {0}.main()"


@dataclass(frozen=True)
class ProcessId:
    """A process by number and start time (clock ticks since boot, proc(5))."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises ProcessLookupError when there is none."""
        return cls(pid, _start_ticks(pid))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ProcessId:
        """What `to_json` wrote."""
        return cls(int(data["pid"]), int(data["start_ticks"]))

    def to_json(self) -> dict[str, int]:
        """As it lies in the lab's files."""
        return {"pid": self.pid, "start_ticks": self.start_ticks}

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        try:
            return _start_ticks(self.pid) == self.start_ticks and _state(self.pid) not in "ZX"
        except ProcessLookupError:
            return False

    def kill(self, deadline_s: float = 5.0) -> bool:
        """SIGKILL, then wait until it is gone; whether it is."""
        return self._signal(signal.SIGKILL, deadline_s)

    def terminate(self, deadline_s: float) -> bool:
        """SIGTERM, time to end in good order, then SIGKILL; whether it is gone."""
        return self._signal(signal.SIGTERM, deadline_s) or self.kill()

    def _signal(self, number: int, deadline_s: float) -> bool:
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            if not self.alive:
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            return bool(select.select([handle], [], [], deadline_s)[0])
        finally:
            os.close(handle)

    def wait(self, deadline_s: float) -> bool:
        """Wait until it has ended; whether it has."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            return not self.alive or bool(select.select([handle], [], [], deadline_s)[0])
        finally:
            os.close(handle)


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    # The name, in parentheses, may hold anything.
    return text.rpartition(")")[2].split()


def _start_ticks(pid: int) -> int:
    return int(_stat_fields(pid)[19])


def _state(pid: int) -> str:
    return _stat_fields(pid)[0]


def own_program(name: str, *arguments: str) -> list[str]:
    """The command that runs main() of `yoked.lab.<name>` with the standard library alone."""
    source = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-I", "-S", "-c", _START.format(name), source, *arguments]

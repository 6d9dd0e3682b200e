"""Programs of the lab: the command that starts one, and waiting. Standard library only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

# Python's stdlib and this package alone: starts in 15 ms, and works where site-packages do not.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from yoked.lab import {0}; {0}.main()"


def own_program(name: str, *arguments: str) -> list[str]:
    """The command that runs main() of `yoked.lab.<name>` with the standard library alone."""
    source = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-I", "-S", "-c", _START.format(name), source, *arguments]


def until(ready: Callable[[], bool], limit_s: float, poll_s: float = 0.002) -> bool:
    """Poll until it is so, or the time is over; whether it was."""
    end_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end_s:
            return False
        time.sleep(poll_s)
    return True

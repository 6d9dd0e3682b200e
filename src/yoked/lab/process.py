"""The command that starts a program of the lab. Standard library only."""

from __future__ import annotations

import sys
from pathlib import Path

# Python's stdlib and this package alone: starts in 15 ms, and works where site-packages do not.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from yoked.lab import {0}; {0}.main()"


def own_program(name: str, *arguments: str) -> list[str]:
    """The command that runs main() of `yoked.lab.<name>` with the standard library alone."""
    source = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-I", "-S", "-c", _START.format(name), source, *arguments]

"""`yoked` as a person types it: a process of its own, from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
YOKED = [
    sys.executable,
    "-c",
    "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))",
]


def start(cwd: Path, *words: str) -> subprocess.Popen[str]:
    """Begin a command in a session of its own; whoever starts it ends it."""
    return subprocess.Popen(
        [*YOKED, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a command, and kill it if that does not come."""
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(cwd: Path, *words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """A command from its start to its end."""
    return finish(start(cwd, *words), limit_s)

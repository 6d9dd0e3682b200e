"""Programs that stand in for python and Slurm's, so that scripts run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 30.0

# Remembers how it was started. With a file `waits` beside it, it goes on until it is
# interrupted, with `deaf` until that file is gone; the first word of `statuses` is the status
# with which it ends.
_PYTHON = """#!{python} -IS
import json, os, signal, sys, time
folder = {folder!r}
with open(folder + "/calls", "a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
asked = []
if os.path.exists(folder + "/deaf"):
    with open(folder + "/started", "w") as started:
        started.write(str(os.getpid()))
    while os.path.exists(folder + "/deaf"):
        time.sleep(0.01)
if os.path.exists(folder + "/waits"):
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    with open(folder + "/started", "w") as started:
        started.write(str(os.getpid()))
    while not asked:
        time.sleep(0.01)
    with open(folder + "/waits") as waits, open("metrics.jsonl", "a") as metrics:
        metrics.write(waits.read())
    sys.exit(1)
try:
    with open(folder + "/statuses") as statuses:
        now, *later = statuses.read().split()
except (FileNotFoundError, ValueError):
    sys.exit(0)
with open(folder + "/statuses", "w") as statuses:
    statuses.write(" ".join(later))
sys.exit(int(now))
"""

_SLURM = {
    # Options first, then the program: as the one task of the first node.
    "srun": 'while [[ $1 == --* ]]; do echo "srun $1" >>FOLDER/slurm; shift; done\n'
    'SLURM_NODEID=0 exec "$@"',
    "scancel": 'echo "scancel $*" >>FOLDER/slurm; kill -INT "$(cat FOLDER/started)"',
    "scontrol": "if [[ $1 == show ]]; then echo node7; echo node8; exit; fi\n"
    'echo "scontrol $*" >>FOLDER/slurm',
}


@dataclass
class Stage:
    """A folder to run scripts in, with the stand-ins first on the path."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def programs(self) -> Path:
        return self.folder / "programs"

    def set_up(self) -> None:
        self.programs.mkdir()
        self._write("python", _PYTHON.format(python=sys.executable, folder=str(self.programs)))
        for name, text in _SLURM.items():
            body = text.replace("FOLDER", f"'{self.programs}'")
            self._write(name, f"#!/bin/bash\n{body}\n")

    def _write(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def start(
        self, argv: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, argv: list[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Exit status and what was said."""
        process = self.start(argv, environment)
        said, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, said

    def calls(self) -> list[dict[str, Any]]:
        """How python was started, each time."""
        path = self.programs / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def said_to_slurm(self) -> str:
        path = self.programs / "slurm"
        return path.read_text() if path.exists() else ""

    def take_down(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.communicate()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    stage.set_up()
    yield stage
    stage.take_down()

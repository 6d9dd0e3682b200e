"""What torch.compile made for one run is found by the next one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import YOKED, Laboratory

PROGRAM = Path(__file__).parent / "programs" / "compiles.py"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler"),
]


def start(lab: Laboratory, run: str) -> dict[str, Any]:
    """What the rank of a run of the program has found."""
    folder = lab.root / "program"
    folder.mkdir(exist_ok=True)
    shutil.copy(PROGRAM, folder)
    words = ["run", "--run", run, "compiles.py"]
    there = f"import os; os.chdir({str(folder)!r}); "
    # A compiler on a busy machine takes minutes.
    ended = lab.start(["-c", there + YOKED, *words]).end(timeout_s=500)
    assert ended.status == 0, ended.stderr
    said = next(line for line in ended.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(said)
    return found


def test_the_second_start_compiles_nothing(lab: Laboratory) -> None:
    first, second = start(lab, "first"), start(lab, "second")

    assert first["misses"] > 0
    assert first["libraries"]
    # Not where torch would have it, in a temporary folder.
    assert Path(first["cache"]).is_relative_to(lab.cache / "compiled")
    # Each run has a copy of the program, in another folder.
    assert first["folder"] != second["folder"]
    assert second["misses"] == 0
    assert second["hits"] > 0
    assert second["libraries"] == first["libraries"]

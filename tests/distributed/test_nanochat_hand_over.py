"""nanochat goes on from what `yoked export` wrote, on two ranks as on one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import YOKED, Laboratory

from yoked.train.export import export

PROGRAM = Path(__file__).parent / "programs" / "nanochat_optimizer.py"
CHECKOUT = os.environ.get("NANOCHAT_CHECKOUT", "")

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not CHECKOUT, reason="NANOCHAT_CHECKOUT names no checkout of nanochat"),
]


def stepped(lab: Laboratory, trained: Path, folder: Path, ranks: int) -> dict[str, float]:
    """The sum of each parameter after a step of nanochat's on so many ranks."""
    exported = export(trained, folder, "nanochat", checkpoint="latest", force=False, ranks=ranks)
    files = next((folder / "base_checkpoints").iterdir())
    words = [str(PROGRAM), CHECKOUT, str(files), str(exported.step)]
    if ranks > 1:
        # What is started is sent with its folder.
        there = f"import os; os.chdir({str(PROGRAM.parent)!r}); "
        words = ["-c", there + YOKED, "run", "--ranks", str(ranks), "--", *words]
    environment = {"NANOCHAT_DTYPE": "float32", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = lab.start(words, environment).end()
    assert ended.status == 0, ended.stderr
    said = next(line for line in ended.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(said)
    return found


def test_two_ranks_of_nanochat_go_on_as_one_does(
    lab: Laboratory, trained: Path, tmp_path: Path
) -> None:
    alone = stepped(lab, trained, tmp_path / "one", 1)
    together = stepped(lab, trained, tmp_path / "two", 2)

    assert together == pytest.approx(alone, rel=1e-5, abs=1e-4)

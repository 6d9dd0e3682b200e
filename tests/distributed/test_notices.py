"""A person who is not looking is told by the host of rank 0, once for each verdict."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.distributed.test_diagnosis import PROGRAM, await_steps, stop_rank
from tests.distributed.test_host_program import Pair

pytestmark = pytest.mark.distributed
# A line of a file for each text.
COMMAND = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"]


def test_a_stopped_rank_and_the_end_of_the_run_are_told_once_each(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    told = tmp_path / "told"
    # Only node 0 is given one; beta sees the same.
    pair.folder(0).mkdir()
    receiver = {"run": "night", "command": [*COMMAND, str(told)]}
    (pair.folder(0) / "notify.json").write_text(json.dumps(receiver))
    try:
        pair.start("none", program=PROGRAM)
        await_steps(pair, 40)
        pid = stop_rank(pair, 1)
        pair.until(told.exists)
        time.sleep(2.0)
        hung = told.read_text()
        os.kill(pid, signal.SIGKILL)
        failure = pair.exit(0).failure
        pair.exit(1)
    finally:
        for program in pair.programs:
            program.kill()

    assert failure is not None
    first, second = told.read_text().splitlines()
    assert hung.splitlines() == [first]
    assert first.startswith(f"run night is hung: rank 1 on beta: its process {pid} was stopped")
    assert second == f"run night failed: {failure.headline}"

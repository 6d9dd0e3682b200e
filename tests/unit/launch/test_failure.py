from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from yoked.errors import CheckpointError, YokedError
from yoked.launch.failure import RankCrash, first_failure

TORCHRUN = (
    "E1121 torch/distributed/elastic/multiprocessing/api.py:984] "
    "failed (exitcode: {code}) local_rank: {rank} (pid: 7) of binary: python\n"
)


def leave_error(folder: Path, rank: int, **changes: Any) -> None:
    error = {
        "rank": rank,
        "time_s": 100.0 + rank,
        "kind": "CheckpointError",
        "what": f"model_{rank}.pt is damaged",
        "fix": ["resume from another step"],
        "exit_status": 1,
        "traceback": "Traceback ...",
    }
    (folder / f"error.{rank}.json").write_text(json.dumps(error | changes))


def test_the_earliest_error_is_the_cause(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, time_s=9.0, exit_status=3, kind="RuntimeError")
    leave_error(tmp_path, 2, time_s=8.0)

    failure = first_failure(tmp_path, tmp_path, 1, TORCHRUN.format(code=1, rank=0))

    assert isinstance(failure, CheckpointError)
    assert failure.what == "rank 2: model_2.pt is damaged"


def test_a_killed_rank_is_the_cause_and_not_its_peers_complaint(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, exit_status=3, kind="RuntimeError", what="Connection closed by peer")
    (tmp_path / "host.1.log").write_text("step 7\nstep 8\n")

    failure = first_failure(tmp_path, tmp_path, 1, TORCHRUN.format(code=-9, rank=1))

    assert isinstance(failure, YokedError)
    assert "rank 1 was killed by SIGKILL" in failure.what
    assert "step 8" in failure.what
    assert "--resume" in failure.fix[0]


def test_a_rank_that_torchrun_terminated_is_no_cause(tmp_path: Path) -> None:
    leave_error(tmp_path, 0, exit_status=3, kind="ZeroDivisionError")

    failure = first_failure(tmp_path, tmp_path, 1, TORCHRUN.format(code=-15, rank=1))

    assert isinstance(failure, RankCrash)


def test_a_half_written_error_is_passed_over(tmp_path: Path) -> None:
    leave_error(tmp_path, 1)
    (tmp_path / "error.0.json").write_text('{"rank": 0, "ti')

    failure = first_failure(tmp_path, tmp_path, 1, "")

    assert "rank 1" in str(failure)


def test_ranks_that_never_started_show_what_torchrun_said(tmp_path: Path) -> None:
    failure = first_failure(tmp_path, tmp_path, 1, "No module named torch\n")

    assert isinstance(failure, YokedError)
    assert "No module named torch" in failure.what

"""A rank that behaves as FAKE says, in place of one that trains."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from yoked.errors import DataError, LossNotFiniteError, UsageError, WeightsApartError
from yoked.train.__main__ import main
from yoked.train.config import TrainConfig

RANK = int(os.environ["RANK"])


def fake(config: TrainConfig) -> dict[str, Any]:
    assert config.run is not None
    run_dir = config.runs_dir / config.run
    print(f"rank {RANK} says hello", flush=True)
    ACTS[os.environ["FAKE"]](run_dir)
    return {"run": config.run, "dir": str(run_dir), "steps": 3, "tokens": 48, "state": STATE[0]}


STATE = ["finished"]


def one_cannot_read(run_dir: Path) -> None:
    if RANK == 1:
        raise DataError("rows.bin is gone", fix="prepare it again")
    time.sleep(30)


def all_misused(run_dir: Path) -> None:
    raise UsageError("no such data", fix="name another")


def one_has_a_bug(run_dir: Path) -> None:
    if RANK == 1:
        raise ZeroDivisionError("one by none")
    time.sleep(30)


def one_has_no_finite_loss(run_dir: Path) -> None:
    problem = LossNotFiniteError("the loss is not a finite number", fix="look at it")
    # All ranks see it, and raise it alike.
    problem.of_ranks = (1,)
    raise problem


def nobody_knows_whose_weights(run_dir: Path) -> None:
    problem = WeightsApartError("ranks 0 and 1 hold unlike weights", fix="test it")
    problem.of_ranks = (0, 1)
    raise problem


def one_is_killed(run_dir: Path) -> None:
    if RANK == 1:
        print("allocating too much", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)


def begins_and_is_killed(run_dir: Path) -> None:
    """As one that trains: rank 0 writes what the run is, before the first step."""
    if RANK == 0:
        run_dir.mkdir(parents=True)
        about = {"launch_id": os.environ["YOKED_LAUNCH_ID"], "config": {"ranks": 2}}
        (run_dir / "run.json").write_text(json.dumps(about))
    while not (run_dir / "run.json").exists():
        time.sleep(0.02)
    one_is_killed(run_dir)


def wait_for_interrupt(run_dir: Path) -> None:
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / f"pid.{RANK}").write_text(str(os.getpid()))
    deadline_s = time.monotonic() + 30
    while not caught and time.monotonic() < deadline_s:
        time.sleep(0.02)
    # One rank saves longer than the other; it must be let.
    time.sleep(0.5 * RANK)
    (run_dir / f"saved.{RANK}").write_text(str(len(caught)))
    STATE[0] = "interrupted"


def ignore_everything(run_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / f"pid.{RANK}").write_text(str(os.getpid()))
    # Longer than the test waits, so that only a signal ends it in time.
    time.sleep(90)


def fail_at_first(run_dir: Path) -> None:
    if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise DataError("rows.bin is gone", fix="prepare it again")
    time.sleep(1)


ACTS = {
    "fail_at_first": fail_at_first,
    "finish": lambda run_dir: None,
    "one_cannot_read": one_cannot_read,
    "all_misused": all_misused,
    "one_has_a_bug": one_has_a_bug,
    "one_has_no_finite_loss": one_has_no_finite_loss,
    "nobody_knows_whose_weights": nobody_knows_whose_weights,
    "begins_and_is_killed": begins_and_is_killed,
    "one_is_killed": one_is_killed,
    "wait_for_interrupt": wait_for_interrupt,
    "ignore_everything": ignore_everything,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], train=fake))

"""How far a job is, from what it has written so far."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import JobFolder
from yoked.agent.logtimes import LOG_NAME
from yoked.core.fs import read_tail
from yoked.shape import is_int

# More than any line of metrics, with its arrays by rank, takes.
_TAIL_BYTES = 65_536


def last_attempt(job: JobFolder) -> int:
    """The number of the attempt that runs, or was the last; the first is 0."""
    attempts = job.read("outcome.json").get("attempts")
    if attempts:
        return int(attempts[-1]["attempt"])
    try:
        names = os.listdir(job.logs)  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError:
        return 0
    return max((int(found[2]) for name in names if (found := LOG_NAME.fullmatch(name))), default=0)


def training_progress(folder: Path) -> dict[str, Any] | None:
    """Steps that are done, and the loss of the last, by the newest whole line of a run's metrics.

    None where there is none.
    """
    try:
        lines = read_tail(folder / "metrics.jsonl", _TAIL_BYTES).split(b"\n")
    except OSError:
        return None
    # What follows the last newline is still being written.
    for line in reversed(lines[:-1]):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if not isinstance(content, dict) or not is_int(content.get("step")):
            continue
        # A line of an evaluation has no loss of training.
        if content["step"] >= 0 and "loss" in content:
            loss = content["loss"]
            return {"step": content["step"] + 1, "loss": loss if isinstance(loss, float) else None}
    return None

"""The verdict of a run that failed, in one form wherever a program reads it.

`yoked diagnose`, `attach` and `run` print it with --json, `yoked train` has it beside its error,
and it is result.json of the run's folder. There the supervisor of rank 0's host writes it, as no
controller need be there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import JobFolder, run_folder
from yoked.core.fs import read_json, write_bytes

RESULT_NAME = "result.json"


def verdict_of(run: str | None, state: str, faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is to be said of a run; None: of a program that yoked did not start. faults: the root
    first.
    """
    return {"ok": not faults, "run": run, "state": state, "faults": list(faults)}


def failed(run: str, failure: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict of a run that ended by this; failure: as `JobFolder.failure` has it."""
    return verdict_of(run, "failed", [fault_of(failure)])


def fault_of(failure: Mapping[str, Any]) -> dict[str, Any]:
    """A first cause as programs read it."""
    return {
        "cause": failure.get("cause") or "rank-failed",
        "host": failure["host"],
        "hosts": list(failure.get("hosts") or [failure["host"]]),
        "rank": failure.get("rank"),
        "certainty": "sure",
        "evidence": [
            failure["what"],
            *([f"at {failure['at']}"] if failure.get("at") else ()),
            *(failure.get("last_lines") or ()),
        ],
        "fix": list(failure.get("fix") or ()),
        "detected_after_s": None,
    }


def held_up_by(cause: Mapping[str, Any]) -> dict[str, Any]:
    """What holds up a run that goes on, as programs read it. cause: as its hosts tell it, one of
    `causes` in diagnosis.json.
    """
    return {
        "cause": cause["cause"],
        "host": cause["hosts"][0] if cause["hosts"] else "",
        "hosts": cause["hosts"],
        "rank": cause.get("rank"),
        "certainty": cause.get("certainty"),
        "evidence": [cause["what"]],
        "fix": list(cause.get("fix") or ()),
        "detected_after_s": cause.get("since_s"),
    }


def is_of_launch(folder: Path, launch_id: str) -> bool:
    """Whether a run's folder was written last by the ranks of this launch.

    A start that fails before its first rank opens the folder leaves what an earlier one came to.
    """
    return (read_json(folder / "run.json") or {}).get("launch_id") == launch_id


def write_verdict(folder: Path, run: str, failure: Mapping[str, Any]) -> None:
    """Make it the result of a run's folder."""
    text = json.dumps(failed(run, failure), indent=2) + "\n"
    # The disk may be what failed; the verdict is with the job all the same. And the end of the job
    # waits for this.
    with contextlib.suppress(OSError):
        write_bytes(folder / RESULT_NAME, text.encode(), durable=False)


def leave_verdict(job: JobFolder, ended: Mapping[str, Any]) -> None:
    """Write it for a training whose rank 0 is on this host, if it failed. ended: of end.json."""
    spec, failure = job.read("job.json"), job.failure(ended)
    if failure is None or not spec.get("trains") or spec.get("node_rank") != 0:
        return
    folder = run_folder(job, spec)
    # A run that was interrupted may have saved before something failed: rank 0 has said so.
    saved = job.end_state(ended) == "interrupted" and (folder / RESULT_NAME).exists()
    if not saved and is_of_launch(folder, job.launch_id):
        write_verdict(folder, spec["trains"], failure)

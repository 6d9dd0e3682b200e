"""What a host tells of its jobs. Light: every look at a run waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from yoked.agent.fetch import files_below
from yoked.agent.jobfolder import ACTIVE, WORK, JobFolder, all_jobs, find_job, run_folder
from yoked.agent.logtimes import LOG_NAME
from yoked.agent.server import Call
from yoked.core.fs import read_tail
from yoked.shape import is_int

# More than any line of metrics, with its arrays by rank, takes.
_TAIL_BYTES = 65_536


def answer_job_list(call: Call) -> list[dict[str, Any]]:
    """All jobs of this host, the newest first. args: sizes, to have their size on disk too."""
    return [describe(job, sizes=bool(call.args.get("sizes"))) for job in all_jobs()]


def answer_job_status(call: Call) -> dict[str, Any]:
    """One job. args: run."""
    return describe(find_job(call.args["run"]))


def describe(job: JobFolder, *, sizes: bool = False) -> dict[str, Any]:
    """A job for the controller; one whose supervisor was killed gets another."""
    keep_supervised(job)
    spec, ended = job.read("job.json"), job.read("end.json")
    nodes, node = spec.get("nodes", []), spec.get("node_rank", 0)
    record, state, folder = job.read("supervisor.json"), job.state, run_folder(job, spec)
    return {
        "run": job.run,
        "launch_id": job.launch_id,
        "state": state,
        "folder": str(job.path),
        "node_rank": node,
        "nodes": nodes,
        "program": spec.get("program"),
        "trains": spec.get("trains"),
        "run_dir": spec.get("run_dir"),
        "by": spec.get("by"),
        "outputs": spec.get("outputs", []),
        "started_s": _written_s(job.path / "job.json"),
        "ended_s": ended.get("time_s"),
        # By the same clock as the two before: only here can one tell how long ago they were.
        "now_s": time.time(),
        "attempt": last_attempt(job),
        "earlier": job.read("earlier.json").get("attempts") or [],
        "supervisor": record.get("pid") if job.supervised else None,
        "host_program": record.get("host_program"),
        "end": ended or None,
        "failure": job.failure() if state not in ACTIVE else None,
        # Of a training, on the host of its rank 0: until then there is nothing to go on from.
        "can_resume": bool(spec.get("trains")) and (folder / "run.json").is_file(),
        "progress": training_progress(folder),
        "diagnosis": job.read("diagnosis.json") or None,
        "stage": job.read("stage.json") or None,
        "refused": job.read("refused.json") or None,
        "size_bytes": size_bytes(job.path) if sizes else None,
        "outputs_there": _outputs_there(job, spec) if sizes else None,
    }


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


def keep_supervised(job: JobFolder) -> None:
    """Start a new supervisor for a started job that has lost its own before its end."""
    if job.was_started and not job.supervised and not job.read("end.json"):
        from yoked.agent.detach import start_supervisor

        with contextlib.suppress(FileNotFoundError):
            start_supervisor(job)


def _outputs_there(job: JobFolder, spec: dict[str, Any]) -> dict[str, int] | None:
    """What lies here of the outputs that a run named; None: it named none, or they are no more."""
    if not spec.get("outputs"):
        return None
    found = files_below(job.path / WORK, spec["outputs"])
    sizes = [size for _, size, _ in found]
    return {"files": len(sizes), "size_bytes": sum(sizes)} if sizes else None


def _written_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def size_bytes(folder: Path) -> int:
    """What lies in a folder."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(parent, name)).st_size
    return total

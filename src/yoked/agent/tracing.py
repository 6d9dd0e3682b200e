"""Traces of this host's ranks: the wish for them, and the files that ranks write.

A rank writes one file beside its record (yoked.ranks.spans); the newest of an attempt stays.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import ACTIVE, TRACE_ASKED, JobFolder, find_job
from yoked.agent.jobstatus import last_attempt
from yoked.agent.server import Call
from yoked.core.names import TRACE_SUFFIX


def answer_job_trace(call: Call) -> bool:
    """Ask the ranks of a run for a trace of their next steps; returns whether it runs.

    args: run; launch_id: another launch's job of that name is let alone; steps; limit_s: they end
    it then, though fewer steps were taken. What they wrote before goes.
    """
    job = find_job(call.args["run"])
    if job.launch_id != call.args["launch_id"] or job.state != "running":
        return False
    for file in _files(job):
        with contextlib.suppress(OSError):
            file.unlink()
    job.write(TRACE_ASKED, {"steps": call.args["steps"], "limit_s": call.args["limit_s"]})
    return True


def answer_job_traced(call: Call) -> dict[str, Any]:
    """The traces that ranks of this host have written: rank, path, size_bytes; and active, whether
    the job is not over, so that there may be more. args: run.
    """
    job = find_job(call.args["run"])
    # First: a rank that ends writes its own.
    active = job.state in ACTIVE
    found = []
    for file in _files(job):
        with contextlib.suppress(OSError, ValueError):
            rank = int(file.name.split(".")[1])
            found.append({"rank": rank, "path": str(file), "size_bytes": file.stat().st_size})
    return {"active": active, "traces": found}


def _files(job: JobFolder) -> list[Path]:
    return sorted((job.path / "errors").glob(f"{last_attempt(job)}.*{TRACE_SUFFIX}"))

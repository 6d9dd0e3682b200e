"""The Python stacks of this host's ranks, while a run goes on.

Where a rank runs Python, its recorder writes the stacks of all its threads when it is asked
(yoked.ranks.recorder); of another, such as one that is stopped, there is its last record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import STACKS_ASKED, find_job
from yoked.agent.jobstatus import last_attempt
from yoked.agent.server import Call
from yoked.core.fs import read_json
from yoked.core.names import STACKS_SUFFIX
from yoked.core.proc import ProcessId, kernel_view
from yoked.core.shared_json import read_shared_json
from yoked.shape import is_int

# The launcher hears it within 0.2 s, and a rank at once, unless C++ holds the interpreter.
_PATIENCE_S = 2.0
_POLL_S = 0.02


def answer_job_stacks(call: Call) -> list[dict[str, Any]]:
    """The stacks of all ranks of this host, each as yoked.diagnosis.stacks.RankStacks. args: run.

    A rank may have written there what it likes: whoever reads the answer looks at it.
    """
    job = find_job(call.args["run"])
    spec, attempt = job.read("job.json"), last_attempt(job)
    nodes, node = spec.get("nodes") or [], spec.get("node_rank", 0)
    first = sum(int(each["ranks"]) for each in nodes[:node])
    ranks = range(first, first + int(nodes[node]["ranks"])) if node < len(nodes) else range(0)
    records = {rank: job.path / "errors" / f"{attempt}.{rank}.record" for rank in ranks}
    asked_s = time.monotonic()
    with contextlib.suppress(OSError):
        (job.path / STACKS_ASKED).touch(mode=0o600)
    while time.monotonic() < asked_s + _PATIENCE_S and not call.cancelled.is_set():
        if all(_is_told(record, asked_s, job.launch_id) for record in records.values()):
            break
        call.cancelled.wait(_POLL_S)
    # A launcher that stands, or of another yoked, does not take it.
    (job.path / STACKS_ASKED).unlink(missing_ok=True)
    return [_stacks(rank, record, asked_s, job.launch_id) for rank, record in records.items()]


def _is_told(record: Path, asked_s: float, launch_id: str) -> bool:
    """Whether all is there that a rank will tell."""
    if _written(record, asked_s) is not None:
        return True
    pid = _process(read_shared_json(record) or {}, launch_id)
    view = None if pid is None else kernel_view(pid)
    # One that is stopped writes nothing, and one without a process neither.
    return view is None or view.state in "TtZ"


def _stacks(rank: int, record: Path, asked_s: float, launch_id: str) -> dict[str, Any]:
    recorded, written = read_shared_json(record) or {}, _written(record, asked_s)
    pid = _process(recorded, launch_id)
    view = None if pid is None else kernel_view(pid)
    if written is not None:
        threads, at_s = written.get("threads"), written.get("at_s")
    else:
        main = {"name": "MainThread", "main": True, "frames": recorded.get("frames")}
        threads, at_s = [main] if recorded else [], recorded.get("at_s")
    return {
        "rank": rank,
        "pid": pid,
        "state": "" if view is None else view.state,
        "waits_in": "" if view is None else view.waits_in,
        "age_s": _age_s(at_s),
        "at_line_s": _age_s(recorded.get("frames_s")),
        "threads": threads,
    }


def _written(record: Path, asked_s: float) -> dict[str, Any] | None:
    """What a rank wrote after it was asked; None: nothing yet."""
    told = read_json(record.with_suffix(STACKS_SUFFIX))
    # One clock for all processes of this host: clock_gettime(2).
    at_s = None if told is None else told.get("at_s")
    return told if isinstance(at_s, float) and at_s >= asked_s else None


def _process(recorded: Mapping[str, Any], launch_id: str) -> int | None:
    """The process of a rank, if it is there."""
    pid = recorded.get("pid")
    if not is_int(pid):
        return None
    with contextlib.suppress(ProcessLookupError):
        if ProcessId.of(pid).belongs_to(launch_id):
            return int(pid)
    return None


def _age_s(at_s: Any) -> float | None:
    return max(0.0, time.monotonic() - at_s) if isinstance(at_s, float) else None

"""Several ranks on a system without /proc, such as macOS: for as long as this process lives.

What runs of a job is recognised by its entry in /proc, so there is no job here that could be found
again. The host program's own code starts the ranks, as children of this process, in a folder that
nobody else can open. They meet through a file in it, and Gloo connects them on loopback.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yoked.agent.verdict import failed, is_of_launch, write_verdict
from yoked.core.fs import scratch_folder
from yoked.core.proc import LAUNCH_VARIABLE
from yoked.diagnosis.endings import cause_of_end
from yoked.errors import YokedError
from yoked.launch.attach import JobEnd, View
from yoked.launch.bootstrap.host import HostProgram, Signals
from yoked.launch.bootstrap.job import Job, read_job
from yoked.launch.bootstrap.notify import Notifier
from yoked.launch.bootstrap.outcome import RunOutcome
from yoked.launch.here import LocalRun, explain
from yoked.launch.registry import Record
from yoked.launch.start import installed_package
from yoked.liveline import LiveText
from yoked.paths import LIVE_NAME

# What finds a run again, and so does not work without /proc.
UNKNOWN_HERE = "runs, attach, logs, stop, clean, --detach and --restarts"
_LOOK_S = 0.2
_SAID = {
    "interrupted": "it saves and stops; Ctrl-C again ends it without saving",
    "stopped": "its ranks are told to end",
}


def run_without_proc(run: LocalRun, view: View) -> dict[str, Any]:
    """Run to the end, and return rank 0's result; raises what `run_here` raises.

    Call it from the main thread, which Ctrl-C reaches: the ranks save, a second one ends them.
    """
    with scratch_folder("ranks") as folder:
        job = _write_job(run, folder.resolve())
        _set_environment(job)
        over = threading.Event()
        shown = threading.Thread(target=_show, args=(job, view, over), name="show")
        shown.start()
        try:
            # What it says of attempts is for a job's log.
            with contextlib.redirect_stdout(io.StringIO()):
                signals = Signals(lambda stop: view.note(_SAID[stop]))
                outcome = HostProgram(job, signals, Notifier(job)).run()
        finally:
            over.set()
            shown.join()
        result = job.launch_dir(0) / "result.json"
        if result.exists() and outcome.status in ("finished", "interrupted"):
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
        record = _record(job, outcome)
        if record.failure is not None:
            _leave_verdict(run, job.launch_id, record.failure)
        raise explain(run, JobEnd(record))


def run_in_process(run: LocalRun, train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The same of one rank, which this process is."""
    launch_id = os.environ[LAUNCH_VARIABLE] = _launch_id()
    try:
        return train()
    except Exception as problem:
        kind = type(problem).__name__
        what = problem.what if isinstance(problem, YokedError) else repr(problem)
        failure = {
            "host": socket.gethostname(),
            "rank": 0,
            "cause": cause_of_end(signal=None, kind=kind, what=what),
            "what": what,
            "fix": problem.fix if isinstance(problem, YokedError) else (),
        }
        _leave_verdict(run, launch_id, failure)
        if isinstance(problem, YokedError):
            problem.verdict = failed(run.run, failure)
        raise


def _leave_verdict(run: LocalRun, launch_id: str, failure: Mapping[str, Any]) -> None:
    if run.run_dir is not None and is_of_launch(run.run_dir, launch_id):
        write_verdict(run.run_dir, run.run, failure)


def _launch_id() -> str:
    return uuid.uuid4().hex[:12]


def _write_job(run: LocalRun, folder: Path) -> Job:
    config = folder / "config.json"
    config.write_text(json.dumps(dict(run.config)), encoding="utf-8")
    spec = {
        "version": 1,
        "run": run.run,
        "launch_id": _launch_id(),
        "folder": str(folder),
        "node_rank": 0,
        "nodes": [{"host": socket.gethostname(), "address": "127.0.0.1", "ranks": run.ranks}],
        "control_port": 0,
        "control_fd": None,
        "restarts": 0,
        "resume_args": [],
        "program": {
            "kind": "module",
            "name": run.module,
            "args": ["--config-file", str(config)],
        },
        "cwd": str(Path.cwd()),
        "bootstrap": False,
        "file_store": True,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return read_job(path)


def _set_environment(job: Job) -> None:
    """What the ranks inherit; this process does nothing else any more."""
    paths = [installed_package(), os.environ.get("PYTHONPATH", "")]
    os.environ.update(
        {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            LAUNCH_VARIABLE: job.launch_id,
            # Gloo picks the hostname's interface; ranks of one machine need no other than this.
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        }
    )


def _show(job: Job, view: View, over: threading.Event) -> None:
    """Show what rank 0 writes, and its live line, until it is over."""
    offsets = {"out": 0, "err": 0}
    while True:
        last = over.wait(_LOOK_S)
        for stream, offset in offsets.items():
            path = job.log_file(0, 0, "out" if stream == "out" else "err")
            if path.exists() and path.stat().st_size > offset:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                offsets[stream] += len(data)
                view.rank_output(stream, data.decode(errors="replace"))
        if view.live is not None:
            line = job.launch_dir(0) / LIVE_NAME
            told = LiveText.decode(line.read_bytes()) if line.exists() and not last else None
            view.live(told or LiveText())
        if last:
            return


def _record(job: Job, outcome: RunOutcome) -> Record:
    told = {
        "state": outcome.status,
        "node_rank": 0,
        "nodes": [{"host": job.node.host, "address": job.node.address, "ranks": job.node.ranks}],
        "attempt": 0,
        "trains": job.run,
        "failure": outcome.to_dict()["attempts"][-1]["failure"],
        "started_s": time.time(),
        "ended_s": time.time(),
    }
    return Record(job.run, job.launch_id, {job.node.host: told})

"""The runs of `yoked bench`: started together, followed step by step, removed when measured."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import WORK
from yoked.console import StageProgress
from yoked.core.fs import scratch_folder
from yoked.core.parallel import at_once
from yoked.errors import JobError, YokedError
from yoked.fleet.model import Fleet
from yoked.launch.attach import JobEnd
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reconnecting
from yoked.launch.mirror import fetch_json
from yoked.launch.start import NodePlan, start_job
from yoked.remote.client import AgentClient, host_wrote
from yoked.report.bench_table import BenchRow, concurrent_steps, read_steps
from yoked.train.config import TrainConfig
from yoked.workflows.train_fleet import train_request, write_config

# A median of fewer steps says nothing, however long a slow host takes.
MIN_STEPS = 4
# In the job's folder, so that the run is removed with it.
RUNS = "runs"
# Each poll takes a millisecond from the hosts' training.
_POLL_S = 0.5


@dataclass(frozen=True)
class Trial:
    """One run to measure. name: of its row; env: added for its ranks."""

    name: str
    nodes: tuple[NodePlan, ...]
    config: TrainConfig
    sync: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks on all hosts."""
        return sum(node.ranks for node in self.nodes)

    @property
    def steps(self) -> int:
        """Steps of the run."""
        assert self.config.num_iterations is not None
        return self.config.num_iterations


def measure(
    trials: Sequence[Trial], fleet: Fleet, note: Callable[[str], None], progress: StageProgress
) -> list[BenchRow]:
    """Run all trials at the same time, and read their rows. progress: shows steps done.

    When the first has done its steps, the others are ended as soon as they have done a few. Raises
    JobError if a trial fails; all are ended then.
    """
    started: dict[str, _TrialRun] = {}
    with scratch_folder("bench") as folder:

        def start(trial: Trial) -> None:
            started[trial.name] = _TrialRun(trial, fleet, folder)

        try:
            at_once(start, trials)
            runs = [started[trial.name] for trial in trials]
            step_counts = _follow(runs, progress)
            counted = _counted_steps(runs, step_counts, note)
            return [run.row(steps) for run, steps in zip(runs, counted, strict=True)]
        finally:
            at_once(lambda run: run.remove(), started.values())


def _counted_steps(
    runs: Sequence[_TrialRun], step_counts: Sequence[Mapping[str, int]], note: Callable[[str], None]
) -> list[range]:
    """The steps of each run whose time counts: those concurrent with all others, if enough."""
    if len(runs) == 1:
        return [range(1, len(runs[0].steps))]
    beside = concurrent_steps(step_counts, {run.trial.name: run.trial.steps for run in runs})
    counted = []
    for run in runs:
        steps = beside[run.trial.name]
        if len(steps) < min(MIN_STEPS, run.trial.steps) - 1:
            steps = range(1, len(run.steps))
            note(f"{run.trial.name}: too few steps beside the others' ones, all count")
        counted.append(steps)
    return counted


class _TrialRun:
    """A trial that runs, and its training lines so far."""

    def __init__(self, trial: Trial, fleet: Fleet, folder: Path) -> None:
        """Start it. Raises JobError or HostError; nothing is left of the job then."""
        assert trial.config.run is not None
        job_folder = folder / trial.config.run
        job_folder.mkdir()
        write_config(trial.config, job_folder, Path(RUNS))
        request = train_request(trial.config, job_folder, env=trial.env)
        self.trial = trial
        self.started = start_job(request, list(trial.nodes), lambda _: None)
        self.job = RunHandle.of(self.started, reconnecting(fleet))
        self.steps: list[dict[str, Any]] = []
        self.ended = False
        self._offset = 0

    @property
    def client(self) -> AgentClient:
        """The client of rank 0's host."""
        return self.started.nodes[0].client

    @property
    def folder(self) -> str:
        """The job's folder on rank 0's host."""
        return f"{self.started.nodes[0].job_root}/{self.started.run}"

    def end(self) -> None:
        """End it if it still runs, without a checkpoint."""
        if self.job.look().active:
            self.job.stop(save_s=0, say=lambda _: None)

    def remove(self) -> None:
        """End it, and remove it from its hosts."""
        # `yoked clean` removes what is left on a lost host.
        with contextlib.suppress(YokedError):
            self.end()
        self.job.remove()

    def poll(self) -> None:
        """Read the training lines that were written since the last poll."""
        path = f"{self.folder}/{WORK}/{RUNS}/{self.started.run}/metrics.jsonl"
        parts = self.client.stream("file_read", path=path, offset=self._offset)
        new = b"".join(part.data for part in parts)
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        with host_wrote(self.client.host, path):
            lines = [json.loads(line) for line in complete.splitlines()]
            self.steps += [line for line in lines if "dt_s" in line]

    def row(self, counted: range) -> BenchRow:
        """The row of this trial. counted: the steps whose time counts."""
        trial, path = self.trial, f"{self.folder}/{WORK}/{RUNS}/{self.started.run}/run.json"
        with host_wrote(self.client.host, f"what {self.started.run} measured"):
            facts = fetch_json(self.client, path)
            first: Mapping[str, Any] = next(iter((facts or {}).get("hosts") or ()), {})
            # The sync that `auto` chose.
            sync = None if trial.sync is None else str(first.get("sync", trial.sync))
            is_auto = trial.sync == "auto" and len(trial.nodes) > 1
            row = BenchRow(
                name=f"{trial.name}: {sync}" if is_auto else trial.name,
                hosts=tuple(node.host.name for node in trial.nodes),
                ranks=trial.ranks,
                device=str(first.get("device", "")),
                dtype=str(first.get("dtype", "")),
                sync=sync,
                tokens_per_second=0.0,
                step_s=(),
            )
            return read_steps(row, self.steps, counted, complete=len(self.steps) == trial.steps)


def _follow(runs: Sequence[_TrialRun], progress: StageProgress) -> list[dict[str, int]]:
    """Wait for all runs; returns the steps that each had finished, at each poll.

    Raises JobError if a run failed.
    """
    step_counts: list[dict[str, int]] = []
    try:
        while not all(run.ended for run in runs):
            # Ask for the end before reading lines: none that was written before it is missed.
            waiting = [run for run in runs if not run.ended]
            for run, record in zip(
                waiting, at_once(lambda run: run.job.look(), waiting), strict=True
            ):
                run.ended = not record.active
                if run.ended and record.state != "finished":
                    _raise_failure(run, JobEnd(record))
            at_once(lambda run: run.poll(), runs)
            step_counts.append({run.trial.name: len(run.steps) for run in runs})
            _end_slow_runs(runs)
            names = ", ".join(run.trial.name for run in runs)
            furthest = max(runs, key=lambda run: len(run.steps))
            progress.update(names, len(furthest.steps), furthest.trial.steps, "steps")
            time.sleep(_POLL_S)
    finally:
        progress.close()
    return step_counts


def _raise_failure(run: _TrialRun, end: JobEnd) -> None:
    """Raise JobError with the reason that the job's hosts give, before it is removed."""
    failure = end.record.failure or {}
    raise JobError(
        "\n".join([f"{run.trial.name}: {end.verdict}", *end.evidence]),
        fix=[*failure.get("fix", ()), "`yoked train` with the same flags shows all that is said"],
    )


def _end_slow_runs(runs: Sequence[_TrialRun]) -> None:
    """End the other runs when one is done: their further steps would not be concurrent."""
    if not any(len(run.steps) >= run.trial.steps for run in runs):
        return
    for run in runs:
        if not run.ended and MIN_STEPS <= len(run.steps) < run.trial.steps:
            run.end()
            run.poll()
            run.ended = True

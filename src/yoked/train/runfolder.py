"""A run's folder: runs/<run>/ with run.json, metrics.jsonl, events.jsonl, checkpoints/."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yoked.core import fs
from yoked.core.proc import LAUNCH_VARIABLE
from yoked.errors import UsageError, YokedError
from yoked.journal import PatientJournal
from yoked.journal import read as read_journal
from yoked.paths import private_folder
from yoked.runs import COPY_MARK, MARK, require_new
from yoked.train.sinks import Sinks, require_trackers, trackers_of
from yoked.train.trainer import StepStats

# Temporary names of `fs.write_json`; a kill leaves such a file.
_UNFINISHED = re.compile(r"\.(run|result)\.json\.[0-9a-f]+\.tmp")


class RunFolder:
    """The files that rank 0 writes about a run. attempt: number of the start, from 1."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempt = 1
        self._metrics: PatientJournal | None = None
        self._events: PatientJournal | None = None
        self._config: dict[str, Any] = {}
        self._first_step = 0
        self._sinks: Sinks | None = None
        self._reported_stuck = False

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """A base directory for nanochat, with base_checkpoints/<tag>/ and tokenizer/."""
        return self.path / "checkpoints"

    def checkpoint_folder(self, model_tag: str) -> Path:
        """The folder of a model's checkpoints."""
        return self.checkpoints / "base_checkpoints" / model_tag

    def read(self) -> dict[str, Any]:
        """The content of run.json. Raises UsageError if the run has not written it yet."""
        path = self.path / "run.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("it is not a JSON object")
            return found
        except FileNotFoundError as problem:
            raise UsageError(
                f"{self.path} is not a run that can be resumed: it has no run.json",
                fix="start it anew: the same command without --resume",
            ) from problem
        except (OSError, ValueError, RecursionError) as problem:
            raise YokedError(
                f"{path} cannot be read: {problem}",
                fix=f"start a new run from its weights with --from {self.path}",
            ) from problem

    def last_rows(self) -> tuple[int, ...]:
        """Rows of the run's last step by rank; none where that is not recorded."""
        rows: tuple[int, ...] = ()
        path = self.path / "events.jsonl"
        for event in read_journal(path) if path.exists() else ():
            if event.get("event") in ("start", "shares"):
                rows = tuple(event.get("rows", ()))
        return rows

    def claim(self) -> None:
        """Make the folder of a new run. Raises UsageError if the run exists."""
        require_new(self.path)
        try:
            private_folder(self.path)
            (self.path / MARK).touch()
        except OSError as problem:
            raise YokedError(
                f"{self.path} cannot be made: {problem.strerror}",
                fix="name a folder that can be written with --runs-dir",
            ) from problem

    def open(self, content: Mapping[str, Any], attempt: int, first_step: int = 0) -> None:
        """Write run.json and open the journals for appending.

        first_step: steps that are done. Raises UsageError for a tracker that is not installed.
        """
        self._config = dict(content.get("config") or {})
        require_trackers(trackers_of(self._config.get("log_to")))
        self._first_step = first_step
        # It tells what an earlier start came to, which goes on now.
        (self.path / "result.json").unlink(missing_ok=True)
        # From now on it is more than what the hosts have from which it may have been fetched.
        (self.path / COPY_MARK).unlink(missing_ok=True)
        self.attempt = attempt
        for left in self.path.iterdir():
            # An earlier attempt was killed while it wrote the file.
            if _UNFINISHED.fullmatch(left.name):
                left.unlink(missing_ok=True)
        launch_id = os.environ.get(LAUNCH_VARIABLE)
        told = {**content, "attempt": attempt, "launch_id": launch_id}
        write_json(self.path / "run.json", told)
        self._metrics = PatientJournal(self.path / "metrics.jsonl")
        self._events = PatientJournal(self.path / "events.jsonl", fsync=True)

    def close(self) -> str | None:
        """Close the journals, if they are open; returns a message if lines had to wait."""
        if self._sinks is not None:
            self._sinks.close()
        for journal in self._journals:
            journal.flush()
        is_stuck = any(journal.waiting for journal in self._journals)
        unwritten = sum(journal.waiting + journal.lost for journal in self._journals)
        told = self.news()
        if is_stuck:
            told = f"LOST: {unwritten:,} lines of {self.path} found no room until the end"
        for journal in self._journals:
            journal.close()
        return told

    @property
    def _journals(self) -> list[PatientJournal]:
        return [journal for journal in (self._metrics, self._events) if journal is not None]

    def news(self) -> str | None:
        """A message when the disk takes no more lines, and another when it does again, and one
        when a tracker takes none; else None.

        Training goes on meanwhile, because the run is worth more than its lines, which wait in
        memory.
        """
        told = [] if self._sinks is None else self._sinks.news()
        if (of_disk := self._news_of_disk()) is not None:
            told.append(of_disk)
        return "\n".join(told) or None

    def _news_of_disk(self) -> str | None:
        stuck = next((journal for journal in self._journals if journal.waiting), None)
        if (stuck is not None) == self._reported_stuck:
            return None
        self._reported_stuck = not self._reported_stuck
        if stuck is not None:
            return (
                f"NOT WRITTEN: {stuck.path} takes no more lines: {stuck.problem}\n"
                f"fix: free space on the disk of {self.path}\n"
                "training goes on; its lines wait in memory and are written once there is room."
            )
        if lost := sum(journal.lost for journal in self._journals):
            self.event("lines_lost", lines=lost)
            for journal in self._journals:
                journal.lost = 0
        gap = f"{lost:,} lines were too many to wait, and are lost" if lost else "none is missing"
        return f"the lines of {self.path} are written again: {gap}"

    def event(self, kind: str, **content: Any) -> None:
        """Write a line into events.jsonl."""
        if self._events is not None:
            self._events.append(
                {"time_s": time.time(), "attempt": self.attempt, "event": kind, **content}
            )

    def step(self, step: int, by_rank: Sequence[StepStats], dt_s: float) -> None:
        """Write a training step into metrics.jsonl, with arrays by rank."""
        assert self._metrics is not None, "open() comes first"
        tokens = sum(stats.tokens for stats in by_rank)
        loss = sum(stats.nats for stats in by_rank) / tokens
        self._metrics.append(
            {
                "attempt": self.attempt,
                "step": step,
                "loss": loss,
                "dt_s": dt_s,
                "tokens": [stats.tokens for stats in by_rank],
                "extra_tokens": [stats.extra_tokens for stats in by_rank],
                "compute_s": [stats.compute_s for stats in by_rank],
                "head_s": [stats.head_s for stats in by_rank],
                "comm_s": [stats.comm_s for stats in by_rank],
                "wait_s": [stats.wait_s for stats in by_rank],
                "bytes_sent": [stats.bytes_sent for stats in by_rank],
            }
        )
        self._track(step + 1, _scalars(by_rank, dt_s, loss, tokens))

    def evaluation(self, step: int, val_bpb: float) -> None:
        """Write an evaluation after `step` steps into metrics.jsonl."""
        assert self._metrics is not None, "open() comes first"
        self._metrics.append({"attempt": self.attempt, "step": step, "val_bpb": val_bpb})
        self._track(step, {"val/bpb": val_bpb})

    def _track(self, step: int, figures: Mapping[str, float]) -> None:
        if self._sinks is None and (names := trackers_of(self._config.get("log_to"))):
            # Only now: the first event, by which they know the run, is written.
            self._sinks = Sinks(names, self.path, self._config, self._first_step)
        if self._sinks is not None:
            self._sinks.log(step, figures)

    def resumed(self, step: int) -> None:
        """Write into metrics.jsonl that earlier attempts' lines from this step on do not count."""
        assert self._metrics is not None, "open() comes first"
        self._metrics.append({"attempt": self.attempt, "resumed_at": step})


def _scalars(
    by_rank: Sequence[StepStats], dt_s: float, loss: float, tokens: int
) -> dict[str, float]:
    """A step for trackers, by the names that nanochat gives them, and ours."""
    figures = {"train/loss": loss, "train/dt": dt_s, "train/tok_per_sec": tokens / dt_s}
    for rank, stats in enumerate(by_rank if len(by_rank) > 1 else ()):
        figures |= {
            f"rank{rank}/compute_s": stats.compute_s,
            f"rank{rank}/comm_s": stats.comm_s,
            f"rank{rank}/wait_s": stats.wait_s,
        }
    return figures


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing a file into a YokedError with a fix."""
    try:
        yield
    except OSError as problem:
        raise YokedError(
            f"{path} cannot be written: {problem.strerror or problem}",
            fix=f"free space on the disk of {path.parent}, or name another --runs-dir",
        ) from problem


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically. Raises YokedError with a fix."""
    with writing(path):
        fs.write_json(path, content)

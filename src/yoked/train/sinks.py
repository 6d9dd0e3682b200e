"""Where a run's figures go beside its journals: Weights & Biases, trackio, TensorBoard.

Rank 0 logs, from a thread of its own for each tracker: what waits for a network there does not hold
up a step. A tracker that fails costs its figures, and not the run: metrics.jsonl has all of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import queue
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from yoked.errors import UsageError
from yoked.train.limits import TRACKERS

# Where TensorBoard's files lie in a run's folder.
TENSORBOARD = "tensorboard"
# Lines that wait for a tracker; more of them are dropped. Of a step they take 500 bytes.
_MOST_WAITING = 100_000
# How long the end of a run waits until a tracker has what it was told.
_END_S = 30.0


class Tracker(Protocol):
    """Takes figures of a run, from one thread."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures after so many steps."""

    def close(self) -> None:
        """Let go of what is held, when all is written."""


class _Wandb:
    """Of wandb, and of trackio, which has the same calls. A start that resumes goes on there."""

    def __init__(self, module: str, run: str, mark: str, config: Mapping[str, Any], folder: Path):
        tracker: Any = importlib.import_module(module)
        more: dict[str, Any] = {}
        if module == "wandb":
            # Its folder has links, which a run's has not. What it prints would be in the line of
            # progress, and it would take this process's streams for itself.
            settings = tracker.Settings(silent=True, console="off")
            more = {"id": mark, "dir": str(folder.parent), "settings": settings}
        self._run = tracker.init(
            project="yoked", name=run, config=dict(config), resume="allow", **more
        )
        self._is_wandb = module == "wandb"
        if self._is_wandb:
            # Its own count of lines never goes back, as steps do where a run is resumed.
            self._run.define_metric("step", hidden=True)
            self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Send them."""
        if self._is_wandb:
            self._run.log({**figures, "step": step})
        else:
            self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Wait until all is sent, or is in its folder."""
        self._run.finish()


class _TensorBoard:
    """Its files in the run's folder. A start that resumes hides what it takes again."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            str(folder / TENSORBOARD), purge_step=first_step + 1 if first_step else None
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a scalar for each."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class Sink:
    """One tracker behind a thread. problem: what it failed with; None: it takes what comes.

    make: opens it, in that thread.
    """

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name = name
        self.problem: str | None = None
        self._lines: queue.Queue[tuple[int, Mapping[str, float]] | None]
        self._lines = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(
            target=self._work, args=(make,), name=f"yoked-{name}", daemon=True
        )
        self._thread.start()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Hand figures over; does not wait."""
        if self.problem is None:
            try:
                self._lines.put_nowait((step, figures))
            except queue.Full:
                self.problem = "it does not keep up"

    def close(self) -> None:
        """Wait for what is handed over, for a while."""
        if self._thread.is_alive():
            # One that does not keep up has a full queue.
            if self.problem is None:
                self._lines.put(None)
            self._thread.join(_END_S if self.problem is None else 0.0)
            if self._thread.is_alive() and self.problem is None:
                self.problem = f"it has not taken all within {_END_S:g} s of the run's end"

    def _work(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            while (line := self._lines.get()) is not None:
                tracker.log(*line)
            tracker.close()
        # SystemExit is wandb's way to say that there is no key.
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - whatever somebody's tracker does
            self.problem = f"{type(problem).__name__}: {problem}"


class Sinks:
    """All trackers of a run. names: some of TRACKERS."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        first_step: int,
    ) -> None:
        # The first line of a run's events no other run shares, and it stays when the run goes on.
        with (folder / "events.jsonl").open("rb") as events:
            mark = hashlib.sha256(events.readline()).hexdigest()[:16]
        self._sinks = [Sink(name, _maker(name, folder, mark, config, first_step)) for name in names]
        self._told: set[str] = set()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Hand figures after so many steps to all of them."""
        for sink in self._sinks:
            sink.log(step, figures)

    def news(self) -> list[str]:
        """A line for each tracker that has failed since this was called last."""
        failed = [sink for sink in self._sinks if sink.problem and sink.name not in self._told]
        self._told |= {sink.name for sink in failed}
        return [
            f"{sink.name} takes no figures any more: {sink.problem}\n"
            "training goes on; metrics.jsonl has all of them"
            for sink in failed
        ]

    def close(self) -> None:
        """Wait for what is handed over, for a while."""
        for sink in self._sinks:
            sink.close()


def _maker(
    name: str, folder: Path, mark: str, config: Mapping[str, Any], first_step: int
) -> Callable[[], Tracker]:
    if name == TENSORBOARD:
        return lambda: _TensorBoard(folder, first_step)
    return lambda: _Wandb(name, folder.name, mark, config, folder)


def trackers_of(log_to: str | None) -> tuple[str, ...]:
    """The names in a --log-to."""
    return tuple(dict.fromkeys(log_to.split(","))) if log_to else ()


def require_trackers(names: Sequence[str]) -> None:
    """Raise UsageError for a tracker that this interpreter does not have."""
    for name in names:
        assert name in TRACKERS, name
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"--log-to {name}: {sys.executable} on this host has no {name}",
                fix=f"{shlex.quote(sys.executable)} -m pip install {name}",
            )

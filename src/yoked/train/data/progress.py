"""Progress reports of long work; the command line draws them."""

from __future__ import annotations

from typing import Protocol


class ProgressSink(Protocol):
    """Receives progress. Called often: `update` must return at once and never raise."""

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Report that `done` of `total` units of a stage are done.

        stage: a few words, such as `tokenising train`; other words begin a new stage.
        total: None if it is not known.
        unit: `bytes`, `documents`, `tokens`, `rows` or `s`.
        """


class StartProgress(ProgressSink, Protocol):
    """Receives what the start of a run is about, too."""

    def doing(self, what: str) -> None:
        """Report what goes on now, such as `measuring dtypes`."""

    def close(self) -> None:
        """Report that nothing of the kind goes on any more."""


class NullProgress:
    """A sink that ignores all reports."""

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Do nothing."""

    def doing(self, what: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

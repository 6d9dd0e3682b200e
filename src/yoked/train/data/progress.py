"""How long work tells what it is doing; the command line renders it."""

from __future__ import annotations

from typing import Protocol


class ProgressSink(Protocol):
    """Takes progress. Called often: it must return at once and never raise."""

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Say that `done` of `total` units of a stage are done.

        stage: a few words, such as `tokenising train`; a new word begins a new stage.
        total: None while it is not known.
        unit: `bytes`, `documents`, `tokens`, `rows`, `characters` or `s`.
        """


class NullProgress:
    """A sink that drops everything."""

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Do nothing."""

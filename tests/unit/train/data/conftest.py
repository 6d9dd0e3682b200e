"""A sink that remembers, and the cache folder of a test."""

from __future__ import annotations

from pathlib import Path

import pytest


class Recorder:
    """Takes progress and keeps it."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int | None, str]] = []

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self.updates.append((stage, done, total, unit))

    def stages(self) -> list[str]:
        """Stages in the order in which they began."""
        return list(dict.fromkeys(stage for stage, *_ in self.updates))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"

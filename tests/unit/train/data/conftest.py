"""A sink that remembers, the cache folder of a test, and a small data set in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from yoked.train.data.dataset import Dataset
from yoked.train.data.prepare import prepare


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


@pytest.fixture
def prepared(tmp_path: Path, cache: Path) -> Dataset:
    lines = [json.dumps({"text": f"the {number} oxen pull {number}"}) for number in range(200)]
    (tmp_path / "farm.jsonl").write_text("\n".join(lines))
    return prepare(str(tmp_path / "farm.jsonl"), max_seq_len=16, vocab_size=280, cache=cache)

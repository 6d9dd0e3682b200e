"""Small files are whole under their names, and survive what comes after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yoked.train.data.files import write_atomically


def test_a_file_and_its_name_are_on_the_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, path.exists()))
    )

    write_atomically(path, b"whole")

    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]

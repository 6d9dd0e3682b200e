"""Rows that are not those that were prepared end the run, on every rank."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.distributed


def change_ids(path: Path) -> None:
    """Swap the bytes of two ids: below the vocabulary's size still, and of the same length."""
    content = bytearray(path.read_bytes())
    content[0:2], content[2:4] = content[2:4], content[0:2]
    path.write_bytes(content)


@pytest.mark.parametrize("ranks", [1, 2])
def test_changed_ids_end_the_run_and_the_file_is_named(
    lab: Any, trained: Path, tmp_path: Path, ranks: int
) -> None:
    del trained  # The cache has the rows now.
    lab.cache = Path(shutil.copytree(lab.cache, tmp_path / "cache"))
    # Other tests of this worker may have prepared more.
    found = list(lab.cache.glob("data/*/train.rows"))
    for rows in found:
        change_ids(rows)

    ended = lab.train("changed", ranks=ranks).end()

    said = ended.stdout + ended.stderr
    assert ended.status == 1, said
    assert any(f"{rows} on " in said for rows in found)
    assert "dataset.json" in said
    assert "yoked data prepare " in said
    assert "Traceback" not in said


def test_an_id_beyond_the_vocabulary_is_named_and_not_a_crash_of_the_embedding(
    lab: Any, trained: Path, tmp_path: Path
) -> None:
    del trained
    lab.cache = Path(shutil.copytree(lab.cache, tmp_path / "cache"))
    found = list(lab.cache.glob("data/*/train.rows"))
    for rows in found:
        rows.write_bytes(b"\xff" * rows.stat().st_size)

    ended = lab.train("changed").end()

    said = ended.stdout + ended.stderr
    assert ended.status == 1, said
    assert any(f"{rows} " in said for rows in found)
    assert "Traceback" not in said

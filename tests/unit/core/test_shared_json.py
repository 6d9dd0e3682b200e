"""A record that one process writes and others read: whole at any moment, or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.core.shared_json import MOST_BYTES, SLOT_BYTES, SharedJson, read_shared_json

WRITES_FOR_EVER = """
import sys
from pathlib import Path
from yoked.core.shared_json import SharedJson
memory = SharedJson(Path(sys.argv[1]))
count = 0
while True:
    count += 1
    memory.write({"count": count, "filler": "x" * (count % 4000), "again": count})
    if count == 1:
        print("begun", flush=True)
"""


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    file = tmp_path / "record"
    memory = SharedJson(file)

    assert read_shared_json(file) is None
    for count in range(5):
        memory.write({"count": count})
        assert read_shared_json(file) == {"count": count}
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_object_that_is_too_long_is_refused_and_the_last_one_stays(tmp_path: Path) -> None:
    memory = SharedJson(tmp_path / "record")
    memory.write({"count": 1})

    with pytest.raises(ValueError, match="are possible"):
        memory.write({"text": "x" * MOST_BYTES})

    assert read_shared_json(tmp_path / "record") == {"count": 1}


def test_a_file_that_is_there_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("another's")

    with pytest.raises(FileExistsError):
        SharedJson(tmp_path / "record")


def test_whenever_the_writer_is_killed_a_whole_object_is_read(tmp_path: Path) -> None:
    file = tmp_path / "record"
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        seen = [read_shared_json(file) for _ in range(200)]
        writer.kill()
    seen.append(read_shared_json(file))

    assert all(found is None or found["count"] == found["again"] for found in seen)
    assert seen[-1] is not None


@given(at=st.integers(0, 2 * SLOT_BYTES + 7), byte=st.integers(0, 255))
def test_a_byte_that_was_overwritten_gives_one_of_the_two_objects_or_none(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    file = tmp_path_factory.mktemp("shared") / "record"
    memory = SharedJson(file)
    first, second = {"count": 1, "text": "abc" * 50}, {"count": 2, "text": "def" * 50}
    memory.write(first)
    memory.write(second)
    content = bytearray(file.read_bytes())
    content[at] = byte
    file.write_bytes(content)

    assert read_shared_json(file) in (None, first, second)

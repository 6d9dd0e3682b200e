"""Files are whole under their names, and survive what comes after."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.core.fs import (
    HashingWriter,
    free_bytes,
    locked,
    read_json,
    read_tail,
    remove_abandoned_scratch,
    scratch_folder,
    sha256_of,
    tail_offset,
    write_bytes,
    write_json,
)


def test_a_file_and_its_name_are_on_the_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, path.exists()))
    )

    write_bytes(path, b"whole")

    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_a_file_that_need_not_survive_a_loss_of_power_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(os, "fsync", fail)

    write_bytes(tmp_path / "result.json", b"whole", durable=False)

    assert (tmp_path / "result.json").read_bytes() == b"whole"


@pytest.mark.parametrize("interruption", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    path = tmp_path / "run.json"
    write_bytes(path, b"old")

    def fail(number: int) -> None:
        raise interruption

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(interruption)):
        write_bytes(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(os.fstat(number).st_mode & 0o777))

    write_bytes(tmp_path / "secret", b"whole", mode=0o600)

    assert seen[0] == 0o600


def test_the_umask_decides_who_reads_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "open", b"whole")
    finally:
        os.umask(before)

    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"somebody's")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    write_bytes(tmp_path / "link", b"ours")

    assert (tmp_path / "elsewhere").read_bytes() == b"somebody's"
    assert not (tmp_path / "link").is_symlink()


def test_a_link_under_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.core.fs.os.urandom", bytes)
    (tmp_path / ".run.json.00000000.tmp").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "run.json", b"ours")

    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / ".run.json.00000000.tmp").is_symlink()


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"steps": [1, 2]})

    assert read_json(tmp_path / "run.json") == {"steps": [1, 2]}
    assert (tmp_path / "run.json").read_text() == json.dumps({"steps": [1, 2]}, indent=2) + "\n"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_json_that_is_no_object_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)

    assert read_json(tmp_path / "run.json") is None
    assert read_json(tmp_path / "missing.json") is None


def test_a_file_is_hashed_while_it_is_written(tmp_path: Path) -> None:
    with HashingWriter(tmp_path / "model") as file:
        file.write(b"one")
        file.write(memoryview(b"two"))

    assert (tmp_path / "model").read_bytes() == b"onetwo"
    assert file.size_bytes == 6
    assert file.sha256 == hashlib.sha256(b"onetwo").hexdigest() == sha256_of(tmp_path / "model")


def test_a_hashed_file_is_on_the_disk_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))

    with HashingWriter(tmp_path / "model") as file:
        file.write(b"whole")

    assert sizes == [5]


def test_a_hashed_file_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"old")

    with pytest.raises(FileExistsError):
        HashingWriter(tmp_path / "model")

    assert (tmp_path / "model").read_bytes() == b"old"


class FullDisk:
    """An open file that takes three bytes."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: memoryview) -> int:
        if len(self.taken) == 3:
            raise OSError(28, "No space left on device")
        self.taken += bytes(data[:1])
        return 1

    def close(self) -> None:
        pass


class LibraryError(Exception):
    """What a library makes of an error of the system."""


def test_a_hashed_file_raises_its_first_error_and_leaves_out_no_byte(tmp_path: Path) -> None:
    disk = FullDisk()

    def write(file: HashingWriter) -> None:
        file._file.close()
        file._file = disk  # type: ignore[assignment]
        file.write(b"abc")
        try:
            file.write(b"d")
        except OSError as error:
            raise LibraryError from error

    with (
        pytest.raises(OSError, match="No space left"),
        HashingWriter(tmp_path / "model") as whole,
    ):
        write(whole)

    assert disk.taken == b"abc"
    assert whole.size_bytes == 3


@given(content=st.binary(max_size=200), count=st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_a_tail_has_as_many_whole_lines_as_were_asked_for(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, count: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    path.write_bytes(content)

    with path.open("rb") as file:
        tail = content[tail_offset(file, count) :]

    assert content.endswith(tail)
    assert tail.count(b"\n") == min(count, content.count(b"\n"))


@pytest.mark.parametrize(("limit_bytes", "tail"), [(0, b""), (3, b"efg"), (100, b"abcdefg")])
def test_the_end_of_a_file_is_read_up_to_a_limit(
    tmp_path: Path, limit_bytes: int, tail: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abcdefg")

    assert read_tail(path, limit_bytes) == tail


def test_free_space_is_known_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


# --- folders for a while

HOLDS = (
    "from yoked.core.fs import scratch_folder\n"
    "with scratch_folder('keys') as folder:\n"
    "    (folder / 'secret').write_text('x')\n"
    "    print(folder, flush=True)\n"
    "    input()\n"
)


def test_a_scratch_folder_is_private_and_goes_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with scratch_folder("keys") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "secret").write_text("x")

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_goes_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = []
    others = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    for other in others:
        assert other.stdout is not None
        folders.append(Path(other.stdout.readline().strip()))
    killed, living = others
    killed.kill()
    killed.communicate()

    with scratch_folder("keys"):
        assert not folders[0].exists()
        assert (folders[1] / "secret").exists()

    living.kill()
    living.communicate()
    remove_abandoned_scratch()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_at_a_time_and_goes_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    holds = "import sys; from pathlib import Path; from yoked.core.fs import locked\n"
    holds += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", holds, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"

    with pytest.raises(TimeoutError, match="its lock is held"), locked(lock, 0.0):
        pass
    other.kill()
    other.communicate()
    for _ in range(2):
        with locked(lock, 10.0):
            pass


def test_threads_of_one_process_keep_each_other_out(tmp_path: Path) -> None:
    with (
        locked(tmp_path / ".lock"),
        pytest.raises(TimeoutError),
        locked(tmp_path / ".lock", 0.0),
    ):
        pass

from __future__ import annotations

import errno
import io
import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.failures import raises_fault

from yoked.journal import Journal, PatientJournal, read


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "deep" / "events.jsonl", fsync=True) as journal:
        for step in range(3):
            journal.append({"step": step, "loss": 1 / (step + 1)})

    events = list(read(tmp_path / "deep" / "events.jsonl"))

    assert [event["step"] for event in events] == [0, 1, 2]
    assert events[2]["loss"] == 1 / 3


def test_a_torn_last_line_is_passed_over_by_readers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2,"lo')

    assert list(read(path)) == [{"step": 1}]


@given(whole=st.integers(0, 3), torn=st.binary(max_size=70_000).filter(lambda b: b"\n" not in b))
def test_a_torn_last_line_is_cut_off_before_the_next_is_written(
    tmp_path_factory: pytest.TempPathFactory, whole: int, torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    path.write_bytes(b'{"kept":1}\n' * whole + torn)

    with Journal(path) as journal:
        journal.append({"new": 1})

    assert list(read(path)) == [{"kept": 1}] * whole + [{"new": 1}]


def test_a_writer_killed_at_any_moment_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import sys; from pathlib import Path; from yoked.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); print('ready', flush=True)\n"
        "while True: journal.append({'fill': 'x' * 3000})\n"
    )
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            while path.stat().st_size < 50_000:
                time.sleep(0.001)
            writer.kill()

    assert all(event == {"fill": "x" * 3000} for event in read(path))


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")

    def write(thread: int) -> None:
        for step in range(50):
            journal.append({"thread": thread, "step": step, "fill": "x" * 500})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()

    events = list(read(journal.path))
    assert len(events) == 200
    for thread_number in range(4):
        steps = [event["step"] for event in events if event["thread"] == thread_number]
        assert steps == list(range(50))


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl") as journal:
        journal.append({"loss": math.nan, "by_rank": (1.0, math.inf), "deep": {"x": -math.inf}})

    assert list(read(journal.path)) == [{"loss": None, "by_rank": [1.0, None], "deep": {"x": None}}]


@pytest.mark.parametrize("bad", ["not json", "[1, 2]"])
def test_a_damaged_line_is_named_with_its_number(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n" + bad + "\n" + json.dumps({"step": 3}) + "\n")

    with raises_fault("log-damaged", number=2):
        list(read(path))


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from yoked.errors import YokedError; from yoked.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "journal = Journal(Path(sys.argv[1])); journal.append({'fill': 'x' * 1500})\n"
        "try: journal.append({'fill': 'y' * 1500})\n"
        "except YokedError as problem: print(problem)\n"
    )
    path = tmp_path / "m.jsonl"

    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )

    assert f"{path} takes no more lines" in done.stdout
    assert path.read_bytes() == b'{"fill":"' + b"x" * 1500 + b'"}\n'


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A disk that takes no more: the kernel's EFBIG goes the way of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_wait_for_room_and_are_written_in_their_order(tmp_path: Path) -> None:
    with PatientJournal(tmp_path / "m.jsonl") as journal:
        journal.append({"step": 0})
        with files_of_at_most(20):
            for step in range(1, 5):
                journal.append({"step": step})
            waiting = journal.waiting
            seen = list(read(journal.path))
        journal.append({"step": 5})

        assert (waiting, seen) == (4, [{"step": 0}])
        assert "No space left on device" in str(journal.problem)
        assert list(read(journal.path)) == [{"step": step} for step in range(6)]
        assert (journal.waiting, journal.lost) == (0, 0)


def test_lines_that_wait_have_a_limit_and_the_first_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.journal._MOST_WAITING_BYTES", 40)
    with PatientJournal(tmp_path / "m.jsonl") as journal:
        with files_of_at_most(0):
            for step in range(10):
                journal.append({"step": step})
        journal.flush()

        assert journal.lost == 7
        assert list(read(journal.path)) == [{"step": step} for step in range(3)]


def test_a_line_that_could_not_be_cut_off_is_cut_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        """Takes half of a line, and like a full btrfs has no room to cut it off."""

        def write(self, data: Any) -> int:
            return super().write(data[: len(data) // 2])

        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with PatientJournal(tmp_path / "m.jsonl") as journal:
        whole = journal._file
        monkeypatch.setattr(journal, "_file", Full(journal.path, "ab+"))
        journal.append({"step": 0})
        journal._file.close()
        monkeypatch.setattr(journal, "_file", whole)
        journal.append({"step": 1})

        assert list(read(journal.path)) == [{"step": 0}, {"step": 1}]


def test_a_journal_that_waits_for_the_disk_has_its_name_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))

    Journal(tmp_path / "events.jsonl", fsync=True).close()

    assert synced == [tmp_path.stat().st_ino]


def test_a_link_in_the_place_of_a_journal_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a line without an end")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "keys")

    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path / "events.jsonl")

    assert (tmp_path / "keys").read_text() == "a line without an end"

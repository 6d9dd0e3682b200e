"""One start at a time on this machine, in folders that are a person's own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import JobError
from yoked.launch import here


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_folder_of_jobs_is_ours_alone_whatever_the_umask(state: Path) -> None:
    before = os.umask(0o002)
    try:
        with here.one_at_a_time():
            pass
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in (state, state / "jobs")] == [0o700, 0o700]
    assert (state / "jobs" / ".starting").stat().st_mode & 0o777 == 0o600


def test_a_start_that_does_not_end_is_waited_for_and_named(
    state: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(here, "_START_WITHIN_S", 0.2)
    with here.one_at_a_time():
        pass

    with (state / "jobs" / ".starting").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JobError) as caught, here.one_at_a_time():
            pass
        assert str(caught.value) == snapshot


def test_a_state_that_cannot_be_written_is_named_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "file" / "state"))

    with pytest.raises(JobError) as caught, here.one_at_a_time():
        pass
    assert str(caught.value) == snapshot

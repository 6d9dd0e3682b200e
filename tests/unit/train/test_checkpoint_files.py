"""A folder of checkpoints, without the tensors: see test_checkpoint for these."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from yoked.train import checkpoint_files
from yoked.train.checkpoint_files import CheckpointFolder


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_disk_without_locks_is_not_taken_for_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(checkpoint_files, "LOCK_WAIT_S", 0.0)
    before = descriptors()

    with pytest.raises(OSError, match="No locks available"):
        CheckpointFolder(tmp_path).lock()
    assert descriptors() == before

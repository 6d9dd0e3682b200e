"""Locks between processes: ranks and terminals may prepare the same data at the same time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from yoked.core.fs import locked
from yoked.errors import DataError
from yoked.paths import private_folder
from yoked.train.data.files import writing_to
from yoked.train.data.progress import ProgressSink

_POLL_S = 0.2
TELL_EVERY_S = 1.0
# A holder reports progress at least once a shard, which takes seconds.
SILENCE_LIMIT_S = 1800.0


class Heartbeat:
    """Forwards progress, and touches a file at most once a second as a sign of life."""

    def __init__(self, path: Path, sink: ProgressSink) -> None:
        self._path, self._sink, self._last_s = path, sink, 0.0

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Forward a report, and touch the file if that is due."""
        now_s = time.monotonic()
        if now_s - self._last_s >= TELL_EVERY_S:
            self._last_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self._path)
        self._sink.update(stage, done, total, unit)


@contextlib.contextmanager
def file_lock(path: Path, progress: ProgressSink) -> Iterator[Heartbeat]:
    """Hold the lock at `path`; yields the sink to which the holder reports its progress.

    The system releases the lock of a process that dies. A holder that lives but has reported
    nothing for half an hour may be stopped: the others raise a DataError that names it.
    """
    owner = path.with_suffix(".owner")
    with contextlib.ExitStack() as held:
        with writing_to(path.parent):
            private_folder(path.parent)
            started_s = last_tell_s = time.monotonic()
            while True:
                try:
                    held.enter_context(locked(path, _POLL_S))  # short, to report in between
                    break
                except TimeoutError:
                    now_s = time.monotonic()
                    if now_s - last_tell_s >= TELL_EVERY_S:
                        last_tell_s = now_s
                        _tell(owner, int(now_s - started_s), progress)
            owner.write_text(str(os.getpid()))
        yield Heartbeat(owner, progress)


def _tell(owner: Path, waited_s: int, progress: ProgressSink) -> None:
    """Report which process is waited for; raise DataError if it has stopped working."""
    holder, silent_s = "another process", 0.0
    with contextlib.suppress(OSError):
        holder = f"process {owner.read_text()}"
        silent_s = time.time() - owner.stat().st_mtime
    if min(silent_s, waited_s) > SILENCE_LIMIT_S:  # the owner file may be an earlier holder's
        raise DataError(
            f"{holder} is preparing the same data, but has done nothing for "
            f"{silent_s / 60:.0f} minutes ({owner.with_suffix('.lock')} is its lock)",
            fix="look at that process; when it is ended, its lock is free and its work is kept",
        )
    progress.update(f"waiting for {holder}, which prepares the same data", waited_s, None, "s")

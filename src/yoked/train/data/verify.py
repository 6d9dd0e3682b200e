"""Compares prepared rows with their recorded sha256 in a background thread while a run trains.

A row file is read once. The result is cached for RENEW_NS, as long as inode, size and time stamps
of the file do not change. The first rank of each host compares for all ranks of the host.

It must not slow the run down, even on a host with one core:
- The thread runs under SCHED_IDLE: if all cores are busy it gets about 3/1000 of one, and it never
  preempts a thread that wakes up. Its reads are of the idle class too, if the disk's scheduler
  has one. Source: task_nice_ioclass in Linux's include/linux/ioprio.h.
- Python's lock is the danger: a SCHED_IDLE thread that holds it and gets no core blocks the
  training thread. Reading and hashing release the lock. It is taken twice a chunk, for
  microseconds; so a chunk has megabytes.
A comparison can therefore take longer than a short run. At its end a run finishes the comparison
at normal priority; otherwise it could have trained on changed rows without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from yoked.hashes import KeptHashes, Stamp
from yoked.train.data.dataset import Dataset
from yoked.train.data.progress import NullProgress, ProgressSink
from yoked.train.data.rows import RowFile

# Disks can lose bits, and no time stamp changes.
RENEW_NS = 7 * 24 * 3_600 * 10**9
_CHUNK_BYTES = 4 << 20


class Verification:
    """The comparison of a data set's row files, by one rank of a host.

    works: False on the other ranks of the host.
    pending: the row files to read; a recent comparison of the others is in the cache.
    problem: the first error; it stays.
    """

    def __init__(
        self,
        data: Dataset,
        cache: Path | None = None,
        *,
        works: bool = True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._data, self._now_ns = data, now_ns
        self._hashes = KeptHashes(data.folder, cache, now_ns=now_ns)
        self.problem: Exception | None = None
        self.pending: list[RowFile] = []
        if works:
            self.pending = [rows for rows in (data.train, data.val) if not self._is_known(rows)]
        self._work, self._done_bytes = self._compare(), 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._in_spare_time, name="verify rows", daemon=True)

    def start(self) -> None:
        """Start the comparison in a thread of idle priority."""
        if self.pending:
            self._thread.start()

    def stop(self) -> None:
        """Make the thread end after its current chunk."""
        self._stopped.set()

    def finish(
        self, progress: ProgressSink | None = None, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Finish the comparison in the calling thread. Raises what `require_sound` raises."""
        self.stop()
        if self._thread.is_alive():
            # Takes one chunk: while this thread waits, the idle thread gets its core.
            self._thread.join()
        self._advance(give_up, progress or NullProgress())
        self.require_sound()

    def require_sound(self) -> None:
        """Raise the error found so far, a DataError that names the file; none: return."""
        if self.problem is not None:
            raise self.problem

    def _in_spare_time(self) -> None:
        # A sandbox may forbid the idle priority, or have none; the rows must be compared even so.
        with contextlib.suppress(OSError):
            _give_way()
        self._advance(self._stopped.is_set, NullProgress())

    def _advance(self, give_up: Callable[[], bool], progress: ProgressSink) -> None:
        total = sum(rows.opened.size_bytes for rows in self.pending)
        try:
            for count in self._work:
                self._done_bytes += count
                progress.update("verifying rows", self._done_bytes, total, "bytes")
                if give_up():
                    return
        except Exception as problem:  # noqa: BLE001 - raised by require_sound
            self.problem = problem

    def _compare(self) -> Iterator[int]:
        """Compare the pending files; yields the bytes of each chunk. Raises DataError."""
        for rows in self.pending:
            recorded, began_ns = self._data.recorded_sha256(rows), self._now_ns()
            digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
            try:
                with rows.path.open("rb", buffering=0) as file:
                    before = Stamp.of(file.fileno())
                    while count := file.readinto(buffer):
                        digest.update(buffer[:count])
                        yield count
                    after = Stamp.of(file.fileno())
            except OSError as error:
                why = f"cannot be read ({error.strerror or error})"
                raise self._data.damaged(rows, why) from error
            # The run trains on the mapped file, whichever file has its name now.
            if before[:2] != rows.opened[:2]:
                raise self._data.damaged(rows, "was replaced while this run reads it")
            if digest.hexdigest() != recorded:
                raise self._data.damaged(rows)
            if before == after:
                self._hashes.keep(rows.path, before, recorded, began_ns)
                self._hashes.save()

    def _is_known(self, rows: RowFile) -> bool:
        """Whether the mapped file had the recorded sha256 when it was read last, lately."""
        known = self._hashes.known(rows.path, rows.opened, renew_ns=RENEW_NS)
        return known == self._data.recorded_sha256(rows)


def _give_way() -> None:
    """Put the calling thread under SCHED_IDLE, for good; without Linux, do nothing.

    It gives way to what belongs to its session and control group. Other sessions are its equals
    where the kernel groups by session. Source: sched(7), "The autogroup feature".
    """
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

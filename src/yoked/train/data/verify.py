"""Comparison of prepared rows with their recorded sha256, in spare time while a run trains.

A row file is read once; the result is remembered in the cache for RENEW_NS, as long as the file
is the same by its inode, size and times. The first rank of each host compares for all of them.

A run must not become slower by it, on a host with one core either:
- The thread is under SCHED_IDLE: where all cores are busy, it gets about 3/1000 of one, and it
  never takes the processor from a thread that wakes up. Its reads are of the idle class too, where
  the disk's scheduler heeds that. Source: task_nice_ioclass in Linux's include/linux/ioprio.h.
- Python's lock is the danger: a thread under SCHED_IDLE that holds it, and gets no core, holds up
  the thread that trains. Reading and hashing release the lock; it is taken twice for each chunk,
  for microseconds, which is why a chunk has megabytes.
So a comparison can take longer than a short run. A run that is finished does the rest at its end,
without giving way; otherwise changed rows would have been trained on in silence.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from yoked.core.fs import read_json
from yoked.paths import cache_root
from yoked.spare import give_way
from yoked.train.data.dataset import Dataset
from yoked.train.data.file_digests import SETTLED_NS, digest_cache_path, save_digests
from yoked.train.data.progress import NullProgress, ProgressSink
from yoked.train.data.rows import RowFile, Stamp

# Disks lose bits without a change of any time stamp.
RENEW_NS = 7 * 24 * 3_600 * 10**9
_CHUNK_BYTES = 4 << 20


class Verification:
    """The comparison of a data set's row files, by one rank of a host.

    works: False on a rank that leaves it to another one of its host.
    pending: the row files to be read, because no comparison of theirs is remembered.
    problem: what was found so far; it stays.
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
        self._memory = digest_cache_path(data.folder, cache or cache_root())
        self.problem: Exception | None = None
        self.pending: list[RowFile] = []
        if works:
            known = read_json(self._memory) or {}
            self.pending = [
                rows for rows in (data.train, data.val) if not self._is_known(known, rows)
            ]
        self._work, self._done_bytes = self._compare(), 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._in_spare_time, name="verify rows", daemon=True)

    def start(self) -> None:
        """Compare in a thread that gives way."""
        if self.pending:
            self._thread.start()

    def stop(self) -> None:
        """Have the thread end with its chunk, whether or not it is through."""
        self._stopped.set()

    def finish(
        self, progress: ProgressSink | None = None, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Do what is left in the calling thread. Raises DataError as `require_sound` does."""
        self.stop()
        if self._thread.is_alive():
            # For a chunk; an idle thread gets the processor that this one leaves.
            self._thread.join()
        self._advance(give_up, progress or NullProgress())
        self.require_sound()

    def require_sound(self) -> None:
        """Raise what was found so far: a DataError that names the file."""
        if self.problem is not None:
            raise self.problem

    def _in_spare_time(self) -> None:
        # A sandbox may forbid it; the rows are compared all the same.
        with contextlib.suppress(PermissionError):
            give_way()
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
        """Compare the pending files, and yield bytes after each chunk. Raises DataError."""
        for rows in self.pending:
            recorded, began_ns = self._data.recorded_sha256(rows), self._now_ns()
            digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
            try:
                with rows.path.open("rb", buffering=0) as file:
                    before = Stamp.of(file)
                    while count := file.readinto(buffer):
                        digest.update(buffer[:count])
                        yield count
                    after = Stamp.of(file)
            except OSError as error:
                why = f"cannot be read ({error.strerror or error})"
                raise self._data.damaged(rows, why) from error
            # Only the file that is mapped says what was trained on.
            if before[:2] != rows.opened[:2]:
                raise self._data.damaged(rows, "was replaced while this run reads it")
            if digest.hexdigest() != recorded:
                raise self._data.damaged(rows)
            settled = began_ns - max(before.mtime_ns, before.ctime_ns) > SETTLED_NS
            if settled and before == after:
                known = read_json(self._memory) or {}
                known[rows.path.name] = [*before, recorded, self._now_ns()]
                save_digests(self._memory, known)

    def _is_known(self, known: dict[str, Any], rows: RowFile) -> bool:
        """Whether the file that was opened is remembered to have the recorded sha256."""
        found = known.get(rows.path.name)
        if not isinstance(found, list) or not found or not isinstance(found[-1], int):
            return False
        *remembered, compared_ns = found
        return (
            remembered == [*rows.opened, self._data.recorded_sha256(rows)]
            # A time in the future is that of a clock which was wrong.
            and 0 <= self._now_ns() - compared_ns < RENEW_NS
        )

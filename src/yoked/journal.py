"""Append-only journals: one JSON object a line, whole lines only.

A process killed in the middle of a line leaves a torn one. Readers pass over it, and the
next writer cuts it off before it appends, so no line is ever glued to another.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yoked.core.faults import fault
from yoked.core.fs import sync_path, tail_offset
from yoked.paths import private_folder

# Some 50,000 steps of two ranks.
_MOST_WAITING_BYTES = 16 << 20


class Journal:
    """A journal that is open for appending, usable from several threads of one process.

    fsync: wait for the disk after each line; otherwise a line survives the death of the
    process, but not that of the machine.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        self._lock = threading.Lock()
        self._torn = False
        private_folder(path.parent)
        # Unbuffered: a line reaches the kernel in one write, before append returns.
        # Through a link that somebody put there, another file would be cut and written to.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(path, flags, 0o666), "ab+", buffering=0)
        cut_torn_line(self._file)
        if fsync:
            # Where the file system can: a line in a file without a name is lost as well.
            with contextlib.suppress(OSError):
                sync_path(path.parent)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event. Numbers that JSON lacks (nan, inf) are written as null."""
        data = _line(event)
        with self._lock:
            try:
                self._write(data)
            except OSError as problem:
                raise fault(
                    "log-full", path=self.path, problem=problem, parent=self.path.parent
                ) from problem

    def _write(self, data: bytes) -> None:
        """Append one line; the caller has the lock. Raises OSError, and leaves no part of it."""
        if self._torn:
            cut_torn_line(self._file)
            self._torn = False
        before = self._file.seek(0, io.SEEK_END)
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._fsync:
                os.fsync(self._file.fileno())
        except OSError:
            # Some file systems need room to cut a file: then the next line's turn does it.
            self._torn = True
            with contextlib.suppress(OSError):
                self._file.truncate(before)
                self._torn = False
            raise

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PatientJournal(Journal):
    """A journal whose lines wait in memory, in their order, while the disk takes none.

    waiting: lines that are not written yet. lost: lines that were appended while
    `_MOST_WAITING_BYTES` waited already. problem: what the system said last against writing.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        super().__init__(path, fsync=fsync)
        self.lost = 0
        self.problem: OSError | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """How many lines are not written yet."""
        return len(self._waiting)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event behind those that wait, or let it wait with them."""
        data = _line(event)
        with self._lock:
            if self._waiting_bytes + len(data) > _MOST_WAITING_BYTES:
                # The first ones say from where on an attempt's lines count: those are kept.
                self.lost += 1
            else:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
            self._write_waiting()

    def flush(self) -> None:
        """Write what waits, as far as that can be done now."""
        with self._lock:
            self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting_bytes -= len(self._waiting.popleft())
        except OSError as problem:
            self.problem = problem


def read(path: Path, loads: Callable[[bytes], Any] = json.loads) -> Iterator[dict[str, Any]]:
    """The events of a journal, oldest first, without a torn last line.

    loads: makes a value of a line, and raises ValueError. A line in the middle that is not a JSON
    object raises YokedError with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                event = loads(line)
            except (ValueError, RecursionError) as problem:
                raise fault("log-damaged", path=path, number=number, problem=problem) from problem
            if not isinstance(event, dict):
                raise fault("log-damaged", path=path, number=number, problem="no object")
            yield event


def cut_torn_line(file: io.FileIO) -> None:
    """Truncate to the end of the last complete line."""
    end = tail_offset(file, 0)
    if end != file.seek(0, io.SEEK_END):
        file.truncate(end)


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(_finite(event), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """The same data with null for numbers that JSON cannot say."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

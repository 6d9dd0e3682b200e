"""When which byte of a log came: noted from outside, because ranks write to plain files.

logs/<rank>.<attempt>.times has a line for each growth that was seen: `TIME out|err END`, with
TIME in seconds since the epoch and END in bytes from the start of that stream's file.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import BinaryIO

LOG_NAME = re.compile(r"(\d+)\.(\d+)\.(out|err)")
STREAMS = ("out", "err")


class LogTimes:
    """Notes the growth of the logs in a folder; goes on where an earlier one left off."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._files: dict[str, BinaryIO] = {}
        self._last: dict[str, tuple[float, int]] = {}

    @property
    def noted_any(self) -> bool:
        """Whether any log has grown."""
        return bool(self._last)

    def note(self) -> None:
        """Look once. The time of a growth is that of the last write, however late it is seen."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._logs) as entries:
            for entry in entries:
                found = LOG_NAME.fullmatch(entry.name)
                if found:
                    self._note_file(entry, f"{found[1]}.{found[2]}", found[3])

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _note_file(self, entry: os.DirEntry[str], stem: str, stream: str) -> None:
        if stem not in self._files:
            self._open(stem)
        status = entry.stat()
        time_s, end = self._last.get(entry.name, (0.0, 0))
        if status.st_size > end:
            # Clocks are set back at times; what came later stays later.
            time_s = max(time_s, status.st_mtime)
            self._last[entry.name] = time_s, status.st_size
            self._files[stem].write(f"{time_s:.3f} {stream} {status.st_size}\n".encode())

    def _open(self, stem: str) -> None:
        path = self._logs / f"{stem}.times"
        for stream in STREAMS:
            if noted := Notes(path, stream).more():
                self._last[f"{stem}.{stream}"] = noted[-1]
        # Unbuffered: one line is one write.
        self._files[stem] = path.open("ab", buffering=0)


class Notes:
    """What was noted of one stream, read on as it grows.

    A line that a killed writer left torn is passed over; the next one covers its bytes.
    """

    def __init__(self, path: Path, stream: str) -> None:
        self._path = path
        self._stream = stream
        self._read_bytes = 0

    def more(self) -> list[tuple[float, int]]:
        """What has come since: (time in seconds, end in bytes), rising."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        lines = whole.decode("ascii", errors="replace").splitlines()
        return [noted for line in lines if (noted := self._parse(line)) is not None]

    def _parse(self, line: str) -> tuple[float, int] | None:
        words = line.split()
        if len(words) != 3 or words[1] != self._stream:
            return None
        try:
            return float(words[0]), int(words[2])
        except ValueError:
            return None

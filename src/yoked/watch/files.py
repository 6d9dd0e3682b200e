"""The files of a run, wherever they lie: in a folder here, or on the host of its rank 0.

What comes from a host is bounded in size, and whoever asks looks at its form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from yoked.errors import YokedError
from yoked.launch.mirror import pieces
from yoked.remote.client import AgentClient, host_wrote
from yoked.report.growing import Lines, LocalLines

# run.json has a choice with its reason for each thing that was measured.
_MOST_JSON_BYTES = 1 << 20
# Of a journal, in memory.
_MOST_OBJECTS = 10_000
# A host that does not answer for so long is looked at again later.
PATIENCE_S = 5.0


class RunFiles(Protocol):
    """Files by their names."""

    def journal(self, name: str) -> Lines:
        """A file that grows by lines."""
        ...


@dataclass(frozen=True)
class FolderFiles:
    """In folders of this machine. others: files that lie elsewhere, by name."""

    folder: Path
    others: Mapping[str, Path] = field(default_factory=dict)

    def journal(self, name: str) -> Lines:
        """As `RunFiles` says."""
        return LocalLines(self.others.get(name, self.folder / name))


@dataclass(frozen=True)
class HostFiles:
    """On a host. client: the connection to it that works now. Raises HostError."""

    client: Callable[[], AgentClient]
    folder: str
    others: Mapping[str, str] = field(default_factory=dict)

    def journal(self, name: str) -> Lines:
        """As `RunFiles` says."""
        return _HostLines(self.client, self.others.get(name, f"{self.folder}/{name}"))


@dataclass(frozen=True)
class _HostLines:
    client: Callable[[], AgentClient]
    path: str

    def lines_at(self, offsets: Sequence[int]) -> tuple[int, list[tuple[int, bytes]]]:
        client = self.client()
        parts = list(
            client.stream("file_lines", timeout_s=PATIENCE_S, path=self.path, offsets=list(offsets))
        )
        with host_wrote(client.host, f"lines of {self.path}"):
            told = parts[0].content
            lines = b"".join(part.data for part in parts).split(b"\n")[:-1]
            return told["size"], [
                (begin, line + b"\n") for begin, line in zip(told["begins"], lines, strict=True)
            ]

    def part(self, offset: int, most_bytes: int) -> bytes:
        came = pieces(self.client(), self.path, offset, most_bytes, cut=True, timeout_s=PATIENCE_S)
        return b"".join(came)


def read_object(files: RunFiles, name: str) -> dict[str, Any] | None:
    """A JSON object that is one file; None: it is not there, or none that a run writes."""
    content = files.journal(name).part(0, _MOST_JSON_BYTES)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class GrowingJournal:
    """The objects of a journal that grows; of a long one, the last ones."""

    def __init__(self, lines: Lines, most_bytes: int) -> None:
        self._lines, self._most_bytes = lines, most_bytes
        self._end: int | None = None
        self.objects: list[dict[str, Any]] = []

    def update(self) -> None:
        """Read what was added. Lines that are no objects are passed over."""
        if self._end is None:
            size, _ = self._lines.lines_at(())
            self._end = max(0, size - self._most_bytes)
        added = self._lines.part(self._end, self._most_bytes)
        whole = added[: added.rfind(b"\n") + 1]
        if not whole and len(added) == self._most_bytes:
            # No run writes a line that is as long.
            whole = added
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                self.objects.append(found)
        self._end += len(whole)
        del self.objects[:-_MOST_OBJECTS]


def why(problem: YokedError | OSError) -> str:
    """What went wrong, in a line."""
    if isinstance(problem, YokedError):
        return problem.what.splitlines()[0]
    if isinstance(problem, IsADirectoryError):
        return f"{problem.filename} is a directory"
    return str(problem)

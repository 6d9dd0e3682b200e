"""Send files by content to a host: only those that it lacks, and only once.

Small ones travel together, compressed; a large one in pieces, as it is, from where the last
attempt ended.
"""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from yoked.core.faults import fault
from yoked.errors import UsageError
from yoked.remote.client import AgentClient

# A piece is on a 1 GbE wire for 70 ms, against which its round trip is short.
PIECE_BYTES = 8 << 20
LARGE_BYTES = 1 << 20
# A wireless link at its worst.
_SLOWEST_BYTES_PER_S = 100_000
# The host reads a file once more to compare its hash.
_HASHED_BYTES_PER_S = 30_000_000
_ANSWER_S = 60.0
_REFUSALS = 3


class Progress(Protocol):
    """Takes progress, as yoked.console.StageProgress does."""

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Say that `done` of `total` units of a stage are done."""


def push_blobs(
    client: AgentClient, files: Mapping[str, Path], progress: Progress | None = None
) -> int:
    """Send files {sha256: path} that the host lacks; returns the bytes that were sent.

    Raises HostError, also where the host's disk cannot hold them, and UsageError for a file that
    cannot be read here.
    """
    if not files:
        return 0
    sizes = {digest: _size(path) for digest, path in files.items()}
    arrived: dict[str, int] = client.call("blobs_missing", sizes=sizes, timeout_s=_ANSWER_S)
    # A large file that is missing although all of it has arrived is being hashed by another
    # controller's agent, or by one that was killed: with its last byte it is completed.
    missing = {digest: min(here, max(0, sizes[digest] - 1)) for digest, here in arrived.items()}
    total = sum(sizes[digest] - here for digest, here in missing.items())
    report = _Report(client.host, total, progress)
    small = [digest for digest in missing if sizes[digest] < LARGE_BYTES]
    for batch in _batches(small, sizes):
        _put(client, [(digest, files[digest]) for digest in batch])
        report.add(sum(sizes[digest] for digest in batch))
    for digest, here in missing.items():
        if sizes[digest] >= LARGE_BYTES:
            _append(client, _Sending(digest, files[digest], sizes[digest]), here, report)
    return report.total


@dataclass(frozen=True)
class _Sending:
    """A large file on its way."""

    digest: str
    path: Path
    size_bytes: int


class _Report:
    """Adds up what one push has sent."""

    def __init__(self, host: str, total: int, progress: Progress | None) -> None:
        self.total = total
        self._host, self._progress, self._done = host, progress, 0

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        if self._progress is not None:
            self._progress.update(f"sending to {self._host}", self._done, self.total, "bytes")


def _batches(digests: list[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Digests in groups of about one piece."""
    batch: list[str] = []
    filled = 0
    for digest in digests:
        batch.append(digest)
        filled += sizes[digest]
        if filled >= PIECE_BYTES:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _put(client: AgentClient, files: list[tuple[str, Path]]) -> None:
    contents = [(digest, _read(path)) for digest, path in files]
    client.call(
        "blobs_put",
        files=[[digest, len(content)] for digest, content in contents],
        # Level 1 keeps up with a fast wire; source code shrinks to a third all the same.
        data=zlib.compress(b"".join(content for _, content in contents), 1),
        timeout_s=_ANSWER_S + PIECE_BYTES / _SLOWEST_BYTES_PER_S,
    )


def _append(client: AgentClient, sending: _Sending, here: int, report: _Report) -> None:
    """Send a large file from `here` on, in bytes."""
    refused = 0
    try:
        with sending.path.open("rb") as file:
            while here < sending.size_bytes:
                file.seek(here)
                taken = _append_piece(client, sending, here, file.read(PIECE_BYTES))
                # What was here may be gone: somebody emptied the cache.
                refused = refused + 1 if taken <= here else 0
                if refused > _REFUSALS:
                    raise fault("file-changes", host=client.host, path=sending.path)
                report.add(taken - here)
                here = taken
    except OSError as problem:
        raise unreadable(sending.path, problem) from problem


def _append_piece(client: AgentClient, sending: _Sending, offset: int, piece: bytes) -> int:
    """Send one piece; returns how much of the file is there now."""
    limit_s = _ANSWER_S + PIECE_BYTES / _SLOWEST_BYTES_PER_S
    taken = client.call(
        "blob_append",
        digest=sending.digest,
        offset=offset,
        total=sending.size_bytes,
        data=piece,
        timeout_s=limit_s + sending.size_bytes / _HASHED_BYTES_PER_S,
    )
    return int(taken)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise unreadable(path, problem) from problem


def unreadable(path: Path, problem: OSError) -> UsageError:
    """The error of a file here that cannot be read."""
    return UsageError(
        f"{path} cannot be read: {problem.strerror or problem}",
        fix=f"ls -l {shlex.quote(str(path))}; what need not travel can be named in .gitignore",
    )

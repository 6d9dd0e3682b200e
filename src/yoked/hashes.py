"""Hashes of files, kept in the cache: a file that has not changed is read only once.

    <cache>/hashes/<folder>.json    by name below the folder: a file's stamp, its SHA-256, when

A file is taken for unchanged as git and rsync take it: by size, inode and times. The time of its
status counts too, which no program can set back, and the device: another disk in the same place may
have a copy with equal inodes and times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from yoked.core.fs import read_json, sha256_of, write_bytes
from yoked.errors import DataError
from yoked.paths import cache_root, private_folder

# A file that was written so lately may be written again without another time: FAT counts in 2 s.
SETTLED_NS = 3_000_000_000
_SAVE_EVERY_BYTES = 1 << 30  # about as much is read again after a kill


class Stamp(NamedTuple):
    """Identity and times of a file: while they are equal, the file has not changed."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> Stamp:
        """Stamp of a file, by its path or its descriptor. Raises OSError."""
        found = os.stat(file)  # noqa: PTH116 - of a descriptor too
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class KeptHashes:
    """Hashes of the files below a folder, or of one file.

    read_bytes: how much was read because nothing was known of it.
    """

    def __init__(
        self,
        folder: Path,
        cache: Path | None = None,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder, self._now_ns = folder.absolute(), now_ns
        label = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        self._path = (cache or cache_root()) / "hashes" / f"{label}.json"
        self._known: dict[str, Any] = read_json(self._path) or {}
        self._new: dict[str, list[int | str]] = {}
        self._unsaved_bytes = self.read_bytes = 0

    def of(self, path: Path) -> str:
        """SHA-256 of a file, in hex. Raises OSError, and DataError if it changes meanwhile."""
        stamp, began_ns = Stamp.of(path), self._now_ns()
        if (known := self.known(path, stamp)) is not None:
            return known
        digest = sha256_of(path)
        self.read_bytes += stamp.size_bytes
        if Stamp.of(path) != stamp:
            raise DataError(
                f"{path} changed while it was read", fix="wait until it is written, then try again"
            )
        self.keep(path, stamp, digest, began_ns)
        return digest

    def known(self, path: Path, stamp: Stamp, *, renew_ns: int | None = None) -> str | None:
        """The hash of a file with that stamp, if it is known. renew_ns: and was read since."""
        entry = self._known.get(self._name(path))
        if not isinstance(entry, list) or entry[: len(stamp)] != list(stamp):
            return None
        match entry[len(stamp) :]:
            case [str(digest), int(read_ns)]:
                # A time in the future was written while the clock was wrong.
                is_new = renew_ns is None or 0 <= self._now_ns() - read_ns < renew_ns
                return digest if is_new else None
        return None

    def keep(self, path: Path, stamp: Stamp, digest: str, began_ns: int) -> None:
        """Keep the hash of a file that had that stamp before and after it was read.

        began_ns: when it was begun to be read. What settles meanwhile may have changed unseen.
        """
        if began_ns - max(stamp.mtime_ns, stamp.ctime_ns) <= SETTLED_NS:
            return
        name = self._name(path)
        self._new[name] = self._known[name] = [*stamp, digest, self._now_ns()]
        self._unsaved_bytes += stamp.size_bytes
        if self._unsaved_bytes >= _SAVE_EVERY_BYTES:
            self.save()

    def save(self) -> None:
        """Write what is new, beside what others wrote; of files that are gone nothing is kept."""
        if not self._new:
            return
        others = read_json(self._path) or {}
        there = {name: entry for name, entry in others.items()
                 if name in self._new or os.path.lexists(self._folder / name)}  # fmt: skip
        # It only saves time, and the cache may be somebody else's, or its disk full.
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            content = json.dumps({**there, **self._new}).encode()
            write_bytes(self._path, content, durable=False)
        self._unsaved_bytes = 0

    def _name(self, path: Path) -> str:
        return str(path.absolute().relative_to(self._folder))


@contextlib.contextmanager
def kept_hashes(folder: Path, cache: Path | None = None) -> Iterator[KeptHashes]:
    """The hashes of a folder's files, which are saved at the end, also of what is interrupted."""
    found = KeptHashes(folder, cache)
    try:
        yield found
    finally:
        found.save()

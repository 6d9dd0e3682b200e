"""Hashes of a folder of data, kept from one push to the next: only what changed is read again.

    <cache>/hashes/<folder>.json    of each file: what the system told of it, and its SHA-256

A file is taken for unchanged as git and rsync take it: by size, number and times. The time of its
status counts too, which no program can set back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from yoked.core.fs import read_json, sha256_of, write_bytes
from yoked.paths import cache_root, private_folder

# One that was written so lately may be written again without another time: FAT counts in 2 s.
_SETTLED_NS = 3_000_000_000


class Hashes:
    """Hashes of the files of a folder. known: by path below it, those of before."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self.kept: dict[str, list[int | str]] = {}

    def of(self, name: str, path: Path) -> str:
        """SHA-256 of a file, in hex. name: its path below the folder. Raises OSError."""
        told = _told(path)
        known = self._known.get(name)
        if isinstance(known, list) and known[:-1] == told and isinstance(known[-1], str):
            self.kept[name] = known
            return known[-1]
        is_settled = time.time_ns() - max(told[2:]) > _SETTLED_NS
        digest = sha256_of(path)
        if is_settled and _told(path) == told:
            self.kept[name] = [*told, digest]
        return digest


@contextlib.contextmanager
def kept_hashes(folder: Path) -> Iterator[Hashes]:
    """Those of a folder, which are kept at the end, also of a push that is interrupted."""
    label = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    path = cache_root() / "hashes" / f"{label}.json"
    found = Hashes(read_json(path) or {})
    try:
        yield found
    finally:
        # A disk that takes no note is no reason to fail.
        with contextlib.suppress(OSError):
            private_folder(path.parent)
            write_bytes(path, json.dumps(found.kept).encode(), durable=False)


def _told(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]

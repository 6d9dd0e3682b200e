"""sha256 of a corpus's files, cached: 100 GB are read for them only once."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yoked.core.fs import read_json, sha256_of, write_json
from yoked.errors import DataError
from yoked.paths import private_folder
from yoked.train.data.progress import ProgressSink
from yoked.train.data.readers import unreadable

# Time stamps are trusted when they are this old. Before, a second change within the resolution of
# the file system's clock would not show in them.
SETTLED_NS = 2 * 10**9
_SAVE_EVERY_BYTES = 1 << 30  # about as much is hashed again after a kill

# Size in bytes and the times of the last change of content and of the inode, in nanoseconds.
_Stamp = tuple[int, int, int]


def sha256_of_files(
    root: Path, files: Sequence[Path], cache: Path, progress: ProgressSink
) -> list[str]:
    """sha256 of each file; from the cache if its size and time stamps have not changed."""
    memory = digest_cache_path(root, cache)
    known = read_json(memory) or {}
    stamps = [_stamp(path) for path in files]
    total, done, unsaved = sum(stamp[0] for stamp in stamps), 0, 0
    hashes: list[str] = []
    for path, stamp in zip(files, stamps, strict=True):
        key = str(path.absolute())
        found = known.get(key)
        if isinstance(found, list) and found[:3] == list(stamp):
            hashes.append(str(found[3]))
        else:
            hashes.append(_hash(path, stamp))
            if time.time_ns() - max(stamp[1:]) > SETTLED_NS:
                known[key] = [*stamp, hashes[-1]]
                unsaved += stamp[0] or 1  # an empty file is worth saving too
            done += stamp[0]
            progress.update("hashing files", done, total, "bytes")
        if unsaved >= _SAVE_EVERY_BYTES:
            save_digests(memory, known)
            unsaved = 0
    if unsaved:
        save_digests(memory, known)
    return hashes


def digest_cache_path(root: Path, cache: Path) -> Path:
    """The JSON file that caches the digests of a folder's files."""
    name = hashlib.sha256(str(root.absolute()).encode("utf-8", "surrogateescape")).hexdigest()
    return cache / "hashes" / f"{name[:16]}.json"


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _hash(path: Path, stamp: _Stamp) -> str:
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if _stamp(path) != stamp:
        raise DataError(
            f"{path} changed while it was read", fix="wait until it is written, then try again"
        )
    return digest


def save_digests(memory: Path, known: dict[str, Any]) -> None:
    """Write the cache, if it can be written."""
    # It only saves time, and the cache folder may be somebody else's and read-only.
    with contextlib.suppress(OSError):
        private_folder(memory.parent)
        write_json(memory, known)

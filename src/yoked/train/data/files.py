"""Writing that a kill, a crash or a full disk cannot leave half done."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.errors import DataError
from yoked.units import format_bytes

# EFBIG is a limit on the size of a file (ulimit -f); a quota has its own number.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file: complete under its name, or not there at all.

    Once this returns, the file survives a loss of power.
    """
    # The process number keeps two writers apart.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, readable by people."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """An object from a JSON file of ours; None when it is not there or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A file system that cannot do it for folders, as fsync(2) has it.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """sha256 of a file's content, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is, or will be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextlib.contextmanager
def writing_to(folder: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn what the operating system says against writing below `folder` into a DataError.

    needed_bytes: an estimate of what is still to be written, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(folder, needed_bytes) from error
        raise DataError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            fix="set YOKED_CACHE to a folder that you can write to",
        ) from error


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise a DataError now rather than hours later when the disk cannot hold the result."""
    if free_bytes(folder) < needed_bytes:
        raise _disk_full(folder, needed_bytes)


def _disk_full(folder: Path, needed_bytes: int | None) -> DataError:
    needed = "" if needed_bytes is None else f"about {format_bytes(needed_bytes)} more needed, "
    return DataError(
        f"{folder}: the disk is full ({needed}{format_bytes(free_bytes(folder))} free). "
        "What was finished is kept; nothing incomplete stays under a final name.",
        fix=(
            "free some space, then run the same command again: it goes on from there",
            "or set YOKED_CACHE to a folder on a larger disk",
        ),
    )

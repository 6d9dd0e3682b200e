"""Errors of the file system as DataErrors with a fix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from yoked.core.fs import NO_ROOM, free_bytes
from yoked.errors import DataError
from yoked.units import format_bytes


@contextlib.contextmanager
def writing_to(folder: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of writing below `folder` into a DataError.

    needed_bytes: estimate of what is still to be written, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _disk_full(folder, needed_bytes) from error
        raise DataError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            fix="set YOKED_CACHE to a folder that you can write to",
        ) from error


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise a DataError now, rather than hours later, if the disk cannot hold the result."""
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

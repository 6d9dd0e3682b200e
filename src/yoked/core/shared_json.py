"""A JSON object in memory that one process writes and others read, also while the writer stands.

The file has two slots. The writer fills the one that is not shown, then shows it, so a reader
finds a whole object whenever the writer stops. Standard library alone, Python 3.9.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SLOT_BYTES = 16_384
# Which slot is shown; a reader checks the sum and takes the other one where it does not fit.
_SHOWN = struct.Struct("=4sI")
_MAGIC = b"ykd1"
# Length and CRC-32 of the text that follows.
_HEAD = struct.Struct("=II")
MOST_BYTES = SLOT_BYTES - _HEAD.size
_FILE_BYTES = _SHOWN.size + 2 * SLOT_BYTES


class SharedJson:
    """The writer's side. Its file belongs to this user alone, and must not be there yet.

    Raises OSError where it cannot be made, or there is no room for it.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Written and not cut to size: a full disk is met here, and not as SIGBUS later.
            empty = _SHOWN.pack(_MAGIC, 0) + bytes(2 * SLOT_BYTES)
            while empty:
                empty = empty[os.write(descriptor, empty) :]
            self._memory = mmap.mmap(descriptor, _FILE_BYTES)
        finally:
            os.close(descriptor)
        self._shown = 0

    def write(self, content: Mapping[str, Any]) -> None:
        """Show another object. Raises ValueError for one of more than MOST_BYTES."""
        text = json.dumps(content, separators=(",", ":")).encode()
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes, and {MOST_BYTES} are possible")
        hidden = 1 - self._shown
        at = _SHOWN.size + hidden * SLOT_BYTES
        self._memory[at : at + _HEAD.size + len(text)] = (
            _HEAD.pack(len(text), zlib.crc32(text)) + text
        )
        _SHOWN.pack_into(self._memory, 0, _MAGIC, hidden)
        self._shown = hidden


def read_shared_json(path: Path) -> dict[str, Any] | None:
    """The object that is shown in a file; None where there is none, or no whole one."""
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES)
    except OSError:
        return None
    if len(content) < _FILE_BYTES or content[:4] != _MAGIC:
        return None
    shown = _SHOWN.unpack_from(content)[1] & 1
    for slot in (shown, 1 - shown):
        at = _SHOWN.size + slot * SLOT_BYTES
        length, checksum = _HEAD.unpack_from(content, at)
        text = content[at + _HEAD.size : at + _HEAD.size + length]
        if 0 < length <= MOST_BYTES and zlib.crc32(text) == checksum:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                return found
    return None

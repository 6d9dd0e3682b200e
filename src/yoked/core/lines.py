"""Parts of a long file of lines: some lines of it, and what was added to it.

Standard library alone: hosts read their own files so, and whoever looks on reads a folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

# Most lines fit; of a longer one more is read.
_BLOCK_BYTES = 4096
# No line of a journal is longer: what is, is left out.
_LONGEST_BYTES = 1 << 20


def lines_at(path: Path, offsets: Sequence[int]) -> tuple[int, list[tuple[int, bytes]]]:
    """The size of a file, and of each offset the first whole line that begins there or later.

    Of a line its offset, and its bytes with the newline; each comes once, in the file's order.
    A file that is not there has no lines, and no bytes. Raises OSError.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0, []
    found: list[tuple[int, bytes]] = []
    with file:
        size = os.fstat(file.fileno()).st_size
        for offset in sorted(set(offsets)):
            # The last one may be that of this offset, too.
            if found and offset <= found[-1][0]:
                continue
            if (line := _line_from(file, offset)) is not None:
                found.append(line)
    return size, found


def _line_from(file: BinaryIO, offset: int) -> tuple[int, bytes] | None:
    """None: no whole line begins there, or later within the longest that there are."""
    # The newline before it tells whether a line begins at the offset itself.
    start = max(0, offset - 1)
    file.seek(start)
    block = file.read(_BLOCK_BYTES)
    begin = 0 if offset == 0 else -1
    while True:
        if begin < 0:
            begin = block.find(b"\n") + 1 or -1
        end = -1 if begin < 0 else block.find(b"\n", begin)
        if end >= 0:
            return start + begin, block[begin : end + 1]
        more = file.read(len(block)) if len(block) < _LONGEST_BYTES else b""
        if not more:
            return None
        block += more


def read_part(path: Path, offset: int, most_bytes: int) -> bytes:
    """The bytes of a file from an offset on, at most so many; none where there is no file.

    Raises OSError.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most_bytes)
    except FileNotFoundError:
        return b""

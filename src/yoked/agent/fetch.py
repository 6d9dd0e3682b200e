"""Files of this host on their way to the controller."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from yoked.agent.server import Call
from yoked.core.lines import lines_at
from yoked.core.patterns import any_matches
from yoked.errors import HostError

_PIECE_BYTES = 1 << 20
# Their names are one message.
_MOST_FILES = 50_000
# Of a long journal, to draw it.
_MOST_LINES = 5_000


def answer_file_list(call: Call) -> list[list[Any]]:
    """[path relative to `folder`, bytes, time of change in ns] of every file below it, sorted.

    patterns, optional: only of files that one of them matches; see core.patterns.
    """
    folder, patterns = Path(call.args["folder"]).expanduser(), call.args.get("patterns")
    if patterns is None:
        return sorted(files_below(folder))
    found = list(islice(files_below(folder, patterns), _MOST_FILES + 1))
    if len(found) > _MOST_FILES:
        raise HostError(
            f"{folder} has more than {_MOST_FILES:,} files that match",
            fix="name fewer by a closer pattern, or have the program pack them into one",
        )
    return sorted(found)


def files_below(folder: Path, patterns: Sequence[str] | None = None) -> Iterator[list[Any]]:
    """Path, bytes and time of change in ns of each file below a folder, in no order.

    A link leads to what may be no part of the folder: it is none of its files.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            below = path.relative_to(folder).as_posix()
            if patterns is not None and not any_matches(patterns, below):
                continue
            try:
                seen = path.lstat()
            except OSError:
                # It went while we looked.
                continue
            if stat.S_ISREG(seen.st_mode):
                yield [below, seen.st_size, seen.st_mtime_ns]


def answer_file_read(call: Call) -> bool:
    """Send the file at `path` from byte `offset` on, in parts; False: there is none.

    most_bytes, optional: no more than so much of it.
    """
    path, left = Path(call.args["path"]).expanduser(), call.args.get("most_bytes", sys.maxsize)
    try:
        with path.open("rb") as file:
            file.seek(call.args.get("offset", 0))
            while not call.cancelled.is_set():
                piece = file.read(min(_PIECE_BYTES, left))
                if not piece:
                    break
                call.send(None, piece)
                left -= len(piece)
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise HostError(f"{path} cannot be read: {problem.strerror}") from problem
    return True


def answer_file_lines(call: Call) -> bool:
    """Send the first whole line that begins at each of `offsets` of the file at `path`, or later.

    Before them a part with the file's size, 0 where there is none, and with where lines begin.
    """
    path = Path(call.args["path"]).expanduser()
    try:
        size, lines = lines_at(path, call.args["offsets"][:_MOST_LINES])
    except OSError as problem:
        raise HostError(f"{path} cannot be read: {problem.strerror}") from problem
    call.send({"size": size, "begins": [begin for begin, _ in lines]}, b"")
    content = b"".join(line for _, line in lines)
    for begin in range(0, len(content), _PIECE_BYTES):
        call.send(None, content[begin : begin + _PIECE_BYTES])
    return True

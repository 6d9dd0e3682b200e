"""Files of this host on their way to the controller."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from yoked.agent.server import Call
from yoked.errors import HostError

_PIECE_BYTES = 1 << 20


def answer_file_list(call: Call) -> list[list[Any]]:
    """[path relative to `folder`, bytes, time of change in ns] of every file below it, sorted.

    A link leads to what may be no part of the folder: it is none of its files.
    """
    folder = Path(call.args["folder"]).expanduser()
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                seen = path.lstat()
            except OSError:
                # It went while we looked.
                continue
            if stat.S_ISREG(seen.st_mode):
                found.append([path.relative_to(folder).as_posix(), seen.st_size, seen.st_mtime_ns])
    return sorted(found)


def answer_file_read(call: Call) -> bool:
    """Send the file at `path` from byte `offset` on, in parts; False: there is none."""
    path = Path(call.args["path"]).expanduser()
    try:
        with path.open("rb") as file:
            file.seek(call.args.get("offset", 0))
            while not call.cancelled.is_set():
                piece = file.read(_PIECE_BYTES)
                if not piece:
                    break
                call.send(None, piece)
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise HostError(f"{path} cannot be read: {problem.strerror}") from problem
    return True

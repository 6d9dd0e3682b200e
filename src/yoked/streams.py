"""The standard streams of a process: a full disk, or a closed stream, does not end it.

Standard library only: it runs before a person's program.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from yoked.core.fs import NO_ROOM

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A file system that turned read-only, or lost its disk, takes no line either.
_UNWRITABLE = NO_ROOM | {errno.EROFS, errno.EIO}


def open_closed_streams() -> None:
    """Put nothing where a shell has closed stdin, stdout or stderr (`yoked runs <&-`).

    Python has None there, and the number would go to the next file that is opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            os.fstat(number)
            continue
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))


def take_any_text() -> None:
    """Have stdin give, and stdout take, text that the encoding of the terminal does not have.

    stdout shows it as an escape, as Python's stderr does; stdin gives surrogates.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        # What a test put there is another kind of stream, or was read from already.
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):
                stream.reconfigure(errors=errors)


def outlive_full_disk() -> None:
    """Have print() go on where stdout or stderr is a file that takes no more.

    What finds no room is left out; how much that was stands in its place once there is room.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A terminal, a pipe, or what a test put there, says by itself that it cannot be written.
        with suppress(AttributeError, OSError, ValueError):
            number = stream.fileno()
            if not stat.S_ISREG(os.fstat(number).st_mode):
                continue
            stream.flush()
            file = _File(number)
            patient = io.TextIOWrapper(
                # With `python -u` there is no buffer.
                io.BufferedWriter(file) if hasattr(stream.buffer, "raw") else file,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=True,
                write_through=stream.write_through,
            )
            setattr(sys, name, patient)
            setattr(sys, f"__{name}__", patient)


class _File(io.FileIO):
    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._lost_bytes = 0

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            if self._lost_bytes:
                note = f"\n[yoked: {self._lost_bytes:,} bytes found no room on the disk]\n"
                super().write(note.encode())
                self._lost_bytes = 0
            while view:
                view = view[super().write(view) or 0 :]
        except OSError as problem:
            if problem.errno not in _UNWRITABLE:
                raise
            self._lost_bytes += len(view)
        return size

"""A file that a command writes where a person says, or in a run's folder: may it be written?"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yoked.cli.flags import check_folder_of
from yoked.core.faults import fault
from yoked.core.fs import NO_ROOM, disk_full, nearest_folder
from yoked.core.names import path_word
from yoked.errors import UsageError, YokedError
from yoked.runs import run_around

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def named_file(flag: str, path: Path, name: str) -> Path:
    """The file that a flag names, links followed: it can be written, and is nobody else's.

    name: what the command calls its file in a run's folder; nothing else there is replaced.
    Raises UsageError, and HostError for a full disk.
    """
    check_folder_of(flag, path)
    real = Path(os.path.realpath(path))
    check_folder_of(flag, real)
    if (kind := _other_kind(real)) is not None:
        instead = path / name if kind == "a folder" else Path(name)
        raise UsageError(
            f"{flag} {path}: this is {kind}, and a file is to be written",
            fix=f"{flag} {path_word(instead)}",
        )
    run = run_around(real)
    own = real.name == name or (real.suffix == Path(name).suffix and not real.exists())
    if run is not None and not own:
        raise UsageError(
            f"{flag} {path}: this is a file of run {run.name}, in {run}, and stays as it is",
            fix=f"{flag} {path_word(name)}    or another name outside that folder",
        )
    try:
        _try(real)
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise disk_full(real, None) from problem
        raise UsageError(
            f"{flag} {path} cannot be written: {problem.strerror}",
            fix=(f"{flag} {path_word(name)}    writes it into this folder", _look_at(real)),
        ) from problem
    return real


def usual_file(flag: str, path: Path) -> Path:
    """The file that is written where no flag names one. A link in its place is replaced.

    A run's folder may come from somebody else: what a link in it leads to stays as it is. Raises
    HostError, with the flag by which another file is named.
    """
    if not path.is_symlink() and (kind := _other_kind(path)) is not None:
        raise _failed(flag, path, f"this is {kind}")
    with writing(flag, path):
        _try(path)
    return path


@contextmanager
def writing(flag: str, path: Path) -> Iterator[None]:
    """Turn what the system says against writing a file into a HostError.

    flag: by which another file is named.
    """
    try:
        yield
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise disk_full(path, None) from problem
        raise _failed(flag, path, problem.strerror or str(problem)) from problem


def _failed(flag: str, path: Path, reason: str) -> YokedError:
    error = fault("write-failed", path=path, reason=reason, parent=nearest_folder(path.parent))
    error.fix = (f"{flag} {path_word(path.name)}    writes it into this folder", *error.fix)
    return error


def _look_at(path: Path) -> str:
    return f"ls -ld {path_word(path.parent)}    there shows whose it is"


def _other_kind(path: Path) -> str | None:
    """The kind of what is no regular file; None: it is one, or nothing, or cannot be seen."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _try(path: Path) -> None:
    """Make a file beside it, as `write_bytes` does, and remove it: modes do not tell everything.

    Raises OSError. In a folder such as /tmp a file of another account still cannot be replaced.
    """
    beside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    beside.unlink()

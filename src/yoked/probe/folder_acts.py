"""Acts in the folders that programs write to: see yoked.probe.acts, which sends this as text."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from yoked.core.mounts import mount_of

_FILE_BYTES = 1 << 20
# As long as ecryptfs takes one, which takes the shortest.
_LONG_NAME = "n" * 140
_MOST_SAID = 160
# So many programs for each processor.
_BUSY_TIMES = 4
MARK = f".yoked-acts-{secrets.token_hex(4)}"


class FailedError(Exception):
    """An act that failed. more: what shows of who is to blame."""

    def __init__(self, said: str, **more: Any) -> None:
        super().__init__(said)
        self.more = more


class UntriedError(Exception):
    """What an act needs is not there, which is told elsewhere or is no fault."""


def in_words(problem: BaseException) -> str:
    """An exception in one line: its kind, and the first line of what it says."""
    said = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {said[0] if said else ''}"[:_MOST_SAID]


def is_busy() -> bool:
    """Whether so much runs here that what takes long need not hang."""
    return os.getloadavg()[0] > _BUSY_TIMES * (os.cpu_count() or 1)


def require(holds: object, otherwise: str, **more: Any) -> None:
    """Raise FailedError where something does not hold."""
    if not holds:
        raise FailedError(otherwise, **more)


# What came of each act on a file system.
_results: dict[tuple[int, str], Exception | None] = {}


@functools.cache
def folders() -> dict[str, Path]:
    """Those that programs write to, by name."""
    home, given = Path(os.path.expanduser("~")), os.environ.get  # noqa: PTH111 - it may fail
    return {
        "home": home,
        "cache": Path(given("XDG_CACHE_HOME") or home / ".cache"),
        "state": Path(given("YOKED_STATE") or given("XDG_STATE_HOME") or home / ".local/state"),
        "tmp": Path(given("TMPDIR") or "/tmp"),  # noqa: S108 - where programs write
    }


def in_folder(folder: str, name: str, act: Callable[[Path], None]) -> None:
    """Try an act there, once on each file system."""
    place = folders()[folder]
    try:
        device = place.stat().st_dev
    except OSError:
        raise UntriedError from None
    if (device, name) not in _results:
        try:
            with folder_for_files(place) as own:
                act(own)
            _results[device, name] = None
        except Exception as problem:  # noqa: BLE001 - raised below, for this folder and others
            _results[device, name] = problem
    failure = _results[device, name]
    if failure is not None:
        raise failure


def tidy() -> None:
    """Remove the folders in which files were tried, those of a child too that was ended."""
    for place in folders().values():
        _remove(place / MARK)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@contextlib.contextmanager
def folder_for_files(place: Path) -> Iterator[Path]:
    """A folder below a place, for the files of one act."""
    folder = place / MARK
    try:
        # That nothing can be written there is told elsewhere.
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        raise UntriedError from None
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            for each in folder.iterdir():
                each.unlink()


def _file(folder: Path, content: bytes = b"word") -> Path:
    file = folder / "file"
    file.write_bytes(content)
    return file


def _map(folder: Path) -> None:
    with _file(folder, bytes(mmap.PAGESIZE)).open("r+b") as file:
        with mmap.mmap(file.fileno(), 0) as whole:
            whole[0] = 7
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            require(whole[0] == 7, "what is read is not what was written")
        require(file.read(1) == b"\7", "what is read is not what was written into the map")


def _lock(folder: Path) -> None:
    import fcntl

    with _file(folder).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_UN)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _link(folder: Path) -> None:
    os.link(_file(folder), folder / "other")


def _symlink(folder: Path) -> None:
    (folder / "other").symlink_to(_file(folder).name)
    require((folder / "other").read_bytes() == b"word", "it does not lead there")


def _rename(folder: Path) -> None:
    (folder / "other").write_bytes(b"old")
    _file(folder).replace(folder / "other")
    require((folder / "other").read_bytes() == b"word", "the old file is still there")


def _fsync(folder: Path) -> None:
    with _file(folder).open("r+b") as file:
        os.fsync(file.fileno())


def _sparse(folder: Path) -> None:
    with _file(folder).open("r+b") as file:
        file.truncate(_FILE_BYTES)
        file.seek(_FILE_BYTES)
        file.write(b"x")
    require((folder / "file").stat().st_size == _FILE_BYTES + 1, "it has another size")


def _mode(folder: Path) -> None:
    file = _file(folder)
    file.chmod(0o700)
    os.utime(file, (1e9, 1e9))
    require(file.stat().st_mtime == 1e9, "its time is another")


def _long_name(folder: Path) -> None:
    (folder / _LONG_NAME).write_bytes(b"")


def _names(folder: Path) -> None:
    """Two names that differ in case alone, and one that is no ASCII."""
    for name in ("name", "Name", "n\u00e4me"):
        Path(folder, name).write_bytes(name.encode())
    require((folder / "name").read_bytes() == b"name", "Name and name are one file")
    require("n\u00e4me" in os.listdir(folder), "n\u00e4me is listed otherwise")  # noqa: PTH208


def _sqlite(folder: Path) -> None:
    try:
        import sqlite3
    except ImportError:
        raise UntriedError from None
    with contextlib.closing(sqlite3.connect(str(folder / "file"), timeout=1.0)) as base:
        # How long a disk takes to write is not the question.
        base.execute("PRAGMA synchronous=OFF")
        base.execute("CREATE TABLE words (word)")
        base.commit()


IN_FOLDERS: dict[str, Callable[[Path], None]] = {
    "map": _map,
    "lock": _lock,
    "link": _link,
    "symlink": _symlink,
    "rename": _rename,
    "fsync": _fsync,
    "sparse": _sparse,
    "mode": _mode,
    "long-name": _long_name,
    **({"names": _names} if sys.platform.startswith("linux") else {}),
    "sqlite": _sqlite,
}


def mount_at(place: Path) -> dict[str, str] | None:
    """The mount that a folder is on; None: nobody says."""
    with contextlib.suppress(OSError):
        return mount_of(place, Path("/proc/self/mountinfo").read_text(errors="replace"))
    return None

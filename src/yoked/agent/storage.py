"""The folders that a run writes to: whether it could, and how much."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.core.fs import nearest_folder
from yoked.core.mounts import mount_of
from yoked.core.parallel import gather_within
from yoked.paths import cache_root, state_root

# A folder of a server that is gone hangs whoever looks at it.
_LIMIT_S = 1.5
# More than a file system keeps beside the inode, so that a full one shows.
_TRIED_BYTES = 8192
# FS_IOC_GETFLAGS, FS_IMMUTABLE_FL and FS_APPEND_FL of linux/fs.h, for a long of 8 bytes.
_GET_FLAGS, _MARKS = 0x80086601, {"i": 0x10, "a": 0x20}


def probe_folders() -> dict[str, Any]:
    """home, state, cache, tmp and shm, each by `describe`; one that hangs has its `error` alone."""
    folders = {
        "home": Path.home(),
        "state": state_root(),
        "cache": cache_root(),
        "tmp": Path(os.environ.get("TMPDIR") or "/tmp"),  # noqa: S108 - where programs write
        "shm": Path("/dev/shm"),  # noqa: S108 - where torch writes
    }
    if sys.platform == "darwin":
        del folders["shm"]
    told, untold = gather_within(
        _LIMIT_S, {name: partial(describe, path) for name, path in folders.items()}
    )
    for name, why in untold.items():
        told[name] = {"path": str(folders[name]), "error": why}
    return told


def describe(folder: Path) -> dict[str, Any]:
    """What a folder is; for one that is not there, what its nearest parent that is there allows.

    A file without a name is written to find out. blocked: what is in the way of making it, which
    `paths.private_folder` would meet: a file, or a link that leads to what is not there (link_to).
    """
    place = nearest_folder(folder)
    found = os.statvfs(place)
    marks = _marks(place)
    error = _try_to_write(place)
    if error is None and marks:
        # Where files may only be added, one without a name is made, and none is renamed or removed.
        error = f"EPERM: {os.strerror(errno.EPERM)}"
    blocked = _in_the_way(folder)
    if blocked is not None:
        error = f"{blocked['error']}: {os.strerror(getattr(errno, blocked['error']))}"
    return {
        "blocked": None if blocked is None else blocked["path"],
        "link_to": None if blocked is None else blocked["link_to"],
        "place": str(place),
        "marks": marks or None,
        "path": str(folder),
        "exists": place == folder,
        "writable": error is None,
        "free_bytes": found.f_bavail * found.f_frsize,
        # Some file systems make inodes as they need them, and count none.
        "free_inodes": found.f_favail if found.f_files else None,
        "filesystem": filesystem_of(place, text(Path("/proc/self/mountinfo"))),
        "noexec": bool(found.f_flag & getattr(os, "ST_NOEXEC", 0)),
        "read_only": bool(found.f_flag & os.ST_RDONLY),
        "owner_uid": place.stat().st_uid,
        "error": error,
    }


def _in_the_way(folder: Path) -> dict[str, Any] | None:
    """What keeps a folder from being made, before rights do: path, link_to and error."""
    for each in (folder, *folder.parents):
        if each.is_dir():
            return None
        if each.is_symlink() and not each.exists():
            # As it would have to be made: relative to where the link lies.
            target = os.path.normpath(each.parent / os.readlink(each))  # noqa: PTH115 - as it is
            return {"path": str(each), "link_to": target, "error": "ENOENT"}
        if each.exists():
            return {"path": str(each), "link_to": None, "error": "ENOTDIR"}
    return None


def _marks(folder: Path) -> str:
    """The marks of chattr(1) that keep even root from changing a folder: "i", "a", both or none."""
    if sys.platform != "linux":
        return ""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        flags = fcntl.ioctl(descriptor, _GET_FLAGS, b"\0" * 8)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    bits = int.from_bytes(flags[:4], sys.byteorder)
    return "".join(mark for mark, bit in _MARKS.items() if bits & bit)


def filesystem_of(folder: Path, mounts: str) -> str | None:
    """The type of the file system that a folder is on. mounts: as in proc_pid_mountinfo(5)."""
    found = mount_of(folder, mounts)
    return None if found is None else found["filesystem"]


def _try_to_write(folder: Path) -> str | None:
    """Why a file cannot be written, locked or read there, as a symbol and words; None: it can."""
    content = b"\1" * _TRIED_BYTES
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(content)
            file.flush()
            # As an installation, and torch's caches, hold theirs.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(0)
            if file.read() != content:
                return "EIO: what is read is not what was written"
    except OSError as problem:
        symbol = errno.errorcode.get(problem.errno or 0, "EIO")
        return f"{symbol}: {problem.strerror}"
    return None

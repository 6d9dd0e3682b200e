"""Whole folders out of content that is here: complete under their name, or absent.

    <cache>/trees/<digest>/    a program's folder; hard links to the blobs, read by convention
    <cache>/data/<label>/      a prepared data set
    <cache>/kernels/<key>/     what was compiled for this type of CPU

An entry is [path, kind, content, bytes]; kind: "file", "program" (executable), "link" or "folder"
(an empty one); content: the SHA-256 of a file, the target of a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from yoked.agent.ask import text
from yoked.agent.files import blob_path, require, require_space, sync_tree, writing_to
from yoked.agent.processors import cpu_type
from yoked.agent.server import Call
from yoked.core.faults import fault
from yoked.core.fs import sha256_of
from yoked.core.mounts import mount_of
from yoked.core.names import path_word
from yoked.errors import HostError
from yoked.paths import cache_root, private_folder

FILE, PROGRAM, LINK, FOLDER = "file", "program", "link", "folder"
PLACES = ("trees", "data", "kernels")
# No folder that is done has a name that begins so.
_MAKING = ".making-"
# What a file system says that has no locks to give.
_NO_LOCKS = ("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP")
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
# What a killed agent left in the making is swept up by the next one, but not another's work.
_ABANDONED_AFTER_S = 86_400.0
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

Entry = Sequence[Any]


def entries_digest(entries: Sequence[Entry]) -> str:
    """SHA-256, in hex, of a folder: of path, kind and content of all that is in it."""
    said = json.dumps(sorted([list(entry[:3]) for entry in entries]), separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """Entries as they travel."""
    return zlib.compress(json.dumps([list(entry) for entry in entries]).encode())


def answer_folder_contents(call: Call) -> dict[str, str] | None:
    """`contents` of `folder`, which may begin with `~`. Raises HostError if it cannot be read.

    args: folder; by_time; and optionally names, the files of it that are looked at, and no others.
    """
    folder = Path(call.args["folder"]).expanduser()
    try:
        if call.args.get("names") is not None:
            return {name: _content(folder / name) for name in call.args["names"]}
        return contents(folder, call.cancelled.is_set, by_time=bool(call.args.get("by_time")))
    except OSError as problem:
        raise HostError(
            f"{problem.filename}: {problem.strerror}", fix=f"ls -l {path_word(folder)}"
        ) from None


def contents(
    folder: Path, is_over: Callable[[], bool] = lambda: False, *, by_time: bool = False
) -> dict[str, str] | None:
    """{path below it: SHA-256} of the files of a folder that is data or a program's; None: it is
    not there. Raises OSError for a folder that cannot be read. is_over: asked before each file.

    What has no content that can be read has words in the place of its hash: "a pipe", "unreadable:
    Permission denied", and "a folder" for one with the name of a file (3.txt). Nothing of a version
    control, of an interpreter or of an environment is looked at. The order is that in which the
    system lists a folder, as a program meets it; by_time: that of the files' times.
    """
    if not folder.is_dir():
        return None
    found = {}
    for where, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(set(folders) - {".git", "__pycache__", ".venv"})
        for name in (*names, *(each for each in folders if PurePosixPath(each).suffix)):
            if is_over():
                return None
            path = Path(where, name)
            found[str(path.relative_to(folder))] = _content(path)
    if by_time:
        found = dict(sorted(found.items(), key=lambda each: (_time_ns(folder / each[0]), each[0])))
    return found


def _time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _refuse(problem: OSError) -> None:
    # What lies in a folder that cannot be read would be left out in silence.
    raise problem


def _content(path: Path) -> str:
    """The hash of a file, or why it has none. Who opens a pipe waits for its other end."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        return sha256_of(path) if kind == stat.S_IFREG else _KINDS.get(kind, "a device")
    except OSError as problem:
        return f"unreadable: {problem.strerror}"


def answer_folder_use(call: Call) -> dict[str, Any]:
    """Whether a file of `folder` can be used as many programs do: HDF5 locks what it reads, and
    numpy.memmap, safetensors and Arrow map it.

    lock: why one cannot be locked, as a symbol (ENOLCK); map: why none can be mapped, in words;
    null: one can, or there is none, or somebody has it. mount: see yoked.core.mounts.
    """
    folder = Path(call.args["folder"]).expanduser()
    told: dict[str, Any] = {"lock": None, "map": None}
    with contextlib.suppress(OSError):
        told["mount"] = mount_of(folder, text(Path("/proc/self/mountinfo")))
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in sorted(names)):
            # Who opens a pipe waits for its other end; what is empty cannot be mapped.
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size:
                    with path.open("rb") as file:
                        return {**told, "lock": _lock_flaw(file), "map": _map_flaw(file)}
    return told


def _lock_flaw(file: BinaryIO) -> str | None:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        symbol = errno.errorcode.get(problem.errno or 0)
        return symbol if symbol in _NO_LOCKS else None
    return None


def _map_flaw(file: BinaryIO) -> str | None:
    try:
        mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ).close()
    except OSError as problem:
        return str(problem)
    return None


def answer_folder_here(call: Call) -> str | None:
    """The path of folder `label` in `place`; None: it is not here."""
    folder = _folder(call.args["place"], call.args["label"])
    return str(folder) if folder.is_dir() else None


def answer_kernels_here(call: Call) -> dict[str, Any]:
    """The CPU's type, and the keys of the kernels that are compiled for it."""
    del call
    return {"cpu": cpu_type(), "keys": kernel_keys()}


def kernel_keys() -> list[str]:
    """Names of the folders that hold a compiled library."""
    found = (cache_root() / "kernels").glob("*/elementwise.so")
    return sorted(path.parent.name for path in found)


def answer_folder_put(call: Call) -> str:
    """Make folder `label` in `place` of blobs that are here; returns its path.

    data: the packed entries. keep_blobs: false removes the blobs, so that removing the folder
    frees its space.
    """
    entries = json.loads(zlib.decompress(call.data))
    place, label = call.args["place"], call.args["label"]
    require(place != "trees" or entries_digest(entries) == label, f"a tree {label!r} that is none")
    folder = _folder(place, label)
    make_folder(folder, entries)
    if not call.args["keep_blobs"]:
        for _, kind, content, _ in entries:
            if kind in (FILE, PROGRAM):
                with contextlib.suppress(FileNotFoundError):
                    blob_path(content).unlink()
    return str(folder)


def make_folder(folder: Path, entries: Sequence[Entry]) -> None:
    """Make a folder of blobs that are here, if it is not there. Raises HostError."""
    if folder.is_dir():
        return
    try:
        with in_the_making(folder, sum(entry[3] for entry in entries)) as making:
            for entry in entries:
                place_entry(making, *entry)
            # It must not survive a loss of power that what is in it did not.
            sync_tree(making)
    except HostError:
        # Another controller may have made it meanwhile, and the blobs went into it.
        if not folder.is_dir():
            raise


def checkout_tree(digest: str, folder: Path) -> None:
    """Copy a tree that is here to `folder`, which must not be there yet. Raises HostError.

    A copy, because programs write where they run, and a hard link would carry that into every
    other run.
    """
    source = _folder("trees", digest)
    if folder.exists():
        raise fault("folder-taken", folder=folder)
    if not source.is_dir():
        raise HostError(f"{source} is gone", fix="run the same command again, which sends it")
    needed_bytes = sum(path.lstat().st_size for path in source.rglob("*"))
    with in_the_making(folder, needed_bytes) as making:
        _copy_tree(source, making)


@contextlib.contextmanager
def in_the_making(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder that gets the name `folder` on an end without error, and is removed on any other.

    Whoever made the same folder meanwhile is left his. Raises HostError for a full disk.
    """
    making = making_beside(folder)
    with writing_to(folder, needed_bytes):
        require_space(folder, needed_bytes)
        private_folder(folder.parent)
        making.mkdir()
        sweep(folder.parent)
        try:
            yield making
            try:
                making.rename(folder)
            except OSError:
                # ENOTEMPTY here, EEXIST there: it is a matter of the file system.
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)


def making_beside(folder: Path) -> Path:
    """A name beside a folder for what is on its way there, or on its way out; see `sweep`."""
    return folder.with_name(f"{_MAKING}{secrets.token_hex(6)}")


def take_away(folder: Path) -> None:
    """Remove a folder such that under its name it is whole or gone.

    A removal that is cut short is swept up later. Raises OSError where it cannot be renamed.
    """
    gone = making_beside(folder)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what was abandoned in the making (.making-*), by its age."""
    for path in parent.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(path)


def _folder(place: str, label: str) -> Path:
    require(place in PLACES and LABEL.fullmatch(label), f"a folder {place!r}, {label!r}")
    return cache_root() / place / label


def place_entry(folder: Path, name: str, kind: str, content: str, size: int) -> None:
    """Put one entry into a folder in the making. size: in bytes, checked with the blob.

    Raises HostError for a blob that is gone or another, OSError.
    """
    relative = PurePosixPath(name)
    require(not relative.is_absolute() and ".." not in relative.parts, f"a file {name!r}")
    target = folder / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == FOLDER:
        target.mkdir()
        return
    if kind == LINK:
        target.symlink_to(content)
        return
    source = blob_path(content)
    try:
        require(source.stat().st_size == size, f"{name!r} with another size than it has")
        if kind == PROGRAM:
            # A blob has one mode, and the same content may be executable here and not there.
            shutil.copyfile(source, target)
            target.chmod(0o555)
        else:
            _link_or_copy(source, target)
    except FileNotFoundError as problem:
        raise fault("cache-emptied", source=source) from problem


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # A file system without hard links, or a file that has all it can have. Or link(2) found the
        # blob, and another controller put the same content in its place before it was linked: then
        # it is "not there", though it is. Where it is gone indeed, so it is for the copy.
        shutil.copyfile(source, target)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy all but bytecode. shutil.copytree would keep to itself why a copy failed."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if "__pycache__" in path.parts[len(source.parts) :]:
            continue
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_dir():
            copy.mkdir()
        else:
            _copy_writable(path, copy)


def _copy_writable(source: Path, target: Path) -> None:
    """Copy content; the mode is that of a new file or a new program."""
    shutil.copyfile(source, target)
    if source.stat().st_mode & 0o100:
        # Who may read it may run it: that keeps to the umask.
        mode = target.stat().st_mode
        target.chmod(mode | (mode & 0o444) >> 2)

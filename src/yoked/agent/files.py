"""Content by its hash: what this host has, and what arrives.

    <cache>/blobs/ab/abcd...          whole files, read only, named by their SHA-256
    <cache>/blobs/ab/.abcd....part    a large one on its way; pushing again goes on from its end

Two controllers may send the same content at once: they write the same bytes at the same places.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from yoked.agent.server import Call
from yoked.core.faults import fault
from yoked.core.fs import NO_ROOM, disk_full, free_bytes, nearest_folder, sha256_of, sync_path
from yoked.errors import HostError, YokedError
from yoked.paths import cache_root, private_folder

DIGEST = re.compile(r"[0-9a-f]{64}")
_READ_ONLY = 0o444
_SYNC_THREADS = 8
_HAS_CONTENT = {stat.S_IFREG, stat.S_IFDIR}


def answer_blobs_missing(call: Call) -> dict[str, int]:
    """Which of `sizes` {sha256: bytes} are not here, and how many bytes of each have arrived.

    Raises HostError now rather than in the middle when the rest does not fit on the disk.
    """
    sizes: dict[str, int] = call.args["sizes"]
    here = {digest: _arrived_bytes(digest) for digest in sizes if not blob_path(digest).exists()}
    require_space(blobs_root(), sum(sizes[digest] - done for digest, done in here.items()))
    return here


def answer_blobs_put(call: Call) -> None:
    """Take small files: `files` [[sha256, bytes], ...], their content one after another, zlib."""
    content = memoryview(zlib.decompress(call.data))
    written: list[tuple[Path, Path]] = []
    start = 0
    with writing_to(blobs_root(), len(content)):
        try:
            for digest, size in call.args["files"]:
                _write(digest, content[start : start + size], written)
                start += size
            # A name must not survive a loss of power that what it vouches for did not.
            sync_files(temporary for temporary, _ in written)
            for temporary, target in written:
                temporary.replace(target)
        finally:
            # A disk that is full stays as it was.
            for temporary, _ in written:
                temporary.unlink(missing_ok=True)


def answer_blob_append(call: Call) -> int:
    """Take a piece of a large file; returns how many of its bytes are here.

    args: digest, offset in bytes, total bytes. A piece whose predecessor is not here is not
    taken: the controller goes on from what is returned. The last piece completes the file.
    """
    digest, offset, total = call.args["digest"], call.args["offset"], call.args["total"]
    if blob_path(digest).exists():
        return int(total)
    part = _part_path(digest)
    if offset > _arrived_bytes(digest):
        return _arrived_bytes(digest)
    with writing_to(part, total - offset):
        private_folder(part.parent)
        try:
            _write_at(part, offset, call.data)
            if offset + len(call.data) >= total:
                _complete(part, digest)
        except FileNotFoundError:
            # Another controller sent the same file and was first; what it was for has it now.
            return int(total) if blob_path(digest).exists() else 0
        except OSError as problem:
            if problem.errno in NO_ROOM:
                part.unlink()
            raise
    return int(offset) + len(call.data)


def blobs_root() -> Path:
    """Where content lies by its hash."""
    return cache_root() / "blobs"


def require(holds: object, what: str) -> None:
    """Raise HostError for what no yoked asks of an agent. What is asked for becomes a path."""
    if not holds:
        raise HostError(
            f"it was asked for {what}, and does nothing of the kind",
            fix="is the controller's yoked whole? install it again, with pip's --force-reinstall",
        )


def blob_path(digest: str) -> Path:
    """Where the content of this hash lies, if it is here."""
    require(DIGEST.fullmatch(digest), f"a hash {digest!r}")
    return blobs_root() / digest[:2] / digest


def sync_files(paths: Iterable[Path]) -> None:
    """Make the content of files, and the names in folders, survive a loss of power.

    os.sync() would wait for whatever else this machine writes. By several threads, because a
    file system commits together what is asked for at the same time: of 3,000 files on ext4 this
    took 0.4 s, one after another 6.5 s.
    """
    # Takes 10 ms to import, and most agents are never sent a file.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        # The list raises what a thread raised.
        list(pool.map(sync_path, paths))


def sync_tree(folder: Path) -> None:
    """`sync_files` of a folder and of all files and folders below it."""
    found = [folder]
    for parent, folders, names in os.walk(folder):
        found += [Path(parent, name) for name in [*folders, *names]]
    # A link has no content but its name, and opening a pipe would wait for its other end.
    sync_files(path for path in found if stat.S_IFMT(path.lstat().st_mode) in _HAS_CONTENT)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise HostError when `folder` cannot take so many bytes more."""
    if free_bytes(folder) < needed_bytes:
        raise disk_full(folder, needed_bytes)


@contextlib.contextmanager
def writing_to(path: Path, needed_bytes: int | None) -> Iterator[None]:
    """Turn what the operating system says against writing at `path` into a HostError.

    needed_bytes: what was to be written, for the message; None: not known.
    """
    try:
        yield
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise disk_full(path, needed_bytes) from problem
        raise fault(
            "write-failed",
            path=problem.filename or path,
            reason=problem.strerror or problem,
            parent=nearest_folder(path.parent),
        ) from problem


def _part_path(digest: str) -> Path:
    whole = blob_path(digest)
    return whole.with_name(f".{whole.name}.part")


def _arrived_bytes(digest: str) -> int:
    try:
        return _part_path(digest).stat().st_size
    except OSError:
        return 0


def _write(digest: str, content: memoryview, written: list[tuple[Path, Path]]) -> None:
    """Write a small file that is not here yet; (where, its own name) joins `written`."""
    target = blob_path(digest)
    if hashlib.sha256(content).hexdigest() != digest:
        raise _damaged(digest)
    if target.exists():
        return
    private_folder(target.parent)
    handle, temporary = tempfile.mkstemp(dir=str(target.parent), prefix=".")
    written.append((Path(temporary), target))
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), _READ_ONLY)


def _write_at(part: Path, offset: int, content: bytes) -> None:
    # What goes on must be there: a file with a hole in front would be another file.
    create = os.O_CREAT if offset == 0 else 0
    descriptor = os.open(part, os.O_WRONLY | create, 0o600)
    try:
        view = memoryview(content)
        while view:
            done = os.pwrite(descriptor, view, offset)
            view, offset = view[done:], offset + done
    finally:
        os.close(descriptor)


def _complete(part: Path, digest: str) -> None:
    """Give a file that has arrived its own name, if it is what it should be."""
    if sha256_of(part) != digest:
        part.unlink()
        raise _damaged(digest)
    part.chmod(_READ_ONLY)
    sync_files([part])
    part.replace(blob_path(digest))


def _damaged(digest: str) -> YokedError:
    return fault("transfer-damaged", digest=digest[:12])

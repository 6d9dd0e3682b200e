"""Files: atomic writes, hashes, ends, free space. Standard library alone, Python 3.9.

Every command waits for its agents to start, so slow imports stand where they are used.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from yoked.core.faults import fault
from yoked.core.names import path_word
from yoked.errors import YokedError

# What the system says where a file cannot grow: no room, no quota, a limit on the size of files.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# And where somebody may not, or nobody can: a file in the place of a folder, a broken disk.
_NO_RIGHT = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EIO, errno.ESTALE}
)
# A process, or the whole machine, may hold no more files open.
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

# How a pointer of git-lfs begins, and what it is smaller than. Source: docs/spec.md of git-lfs.
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/v1", 1024
_SCRATCH = "yoked-scratch-"
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16
_LOCK_POLL_S = 0.05


def write_bytes(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Replace a file in one rename: a reader sees all of the content, or what was there before.

    mode: permissions of the new file; the umask takes away from them. A link at `path` is replaced.
    durable: fsync the file and its folder, so that it survives a loss of power.
    """
    # The random part keeps two writers apart, also threads and processes with the same number.
    # O_EXCL: a link that somebody else put there is not followed.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as problem:
        # It names the temporary file, or none.
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
    if durable:
        sync_path(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` of JSON that people can read."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, damaged or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class HashingWriter:
    """Creates a file and writes it front to back: hashed on the way, fsynced on close.

    A file that exists is an error, and a link is not followed. As a context manager, it raises the
    first OSError of a write, also where a library in between (torch's zip writer) replaced it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._error: OSError | None = None
        import hashlib

        self._sha256 = hashlib.sha256()
        # Unbuffered: a buffer would write at close, when nobody can be told of a full disk.
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes | memoryview) -> int:
        """Append all of `data`; returns its bytes. Raises OSError."""
        view = rest = memoryview(data).cast("B")
        try:
            while rest:
                written = self._file.write(rest)
                assert written is not None, "a blocking file wrote nothing"
                rest = rest[written:]
        except OSError as error:
            self._error = self._error or error
            raise
        self._sha256.update(view)
        self.size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered; writers such as zipfile's call it."""

    @property
    def sha256(self) -> str:
        """Digest of what was written so far, in hexadecimal."""
        return self._sha256.hexdigest()

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if kind is None:
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
        # Ctrl-C stays what it is.
        replaced = isinstance(error, Exception) and error is not self._error
        if replaced and self._error is not None:
            raise self._error from error


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A private temporary folder, gone at the end of the block.

    A process that is killed leaves its own, with keys in it perhaps: the next one removes it.
    """
    import shutil
    import tempfile

    remove_abandoned_scratch()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{purpose}-"))
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned, and removed already
            held = lock_folder(folder, wait=True)
            if folder.exists():
                break
            os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def abandoned_scratch() -> Iterator[Path]:
    """The temporary folders of processes that are no more: nobody holds their lock.

    It is held here until the next is asked for.
    """
    import tempfile

    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*")):
        try:
            held = lock_folder(folder, wait=False)
        except OSError:  # another user's, or another process is at it
            continue
        try:
            yield folder
        finally:
            os.close(held)


def remove_abandoned_scratch() -> None:
    """Remove the temporary folders of processes that are no more."""
    import shutil

    for folder in abandoned_scratch():
        shutil.rmtree(folder, ignore_errors=True)


def lock_folder(folder: Path, *, wait: bool) -> int:
    """A descriptor that holds the folder's lock, until it is closed or its process ends.

    Raises OSError where another holds it and it is not to be waited for, or on disks without locks.
    """
    import fcntl

    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(held)
        raise
    return held


@contextlib.contextmanager
def locked(path: Path, wait_s: float = math.inf) -> Iterator[None]:
    """Hold the lock of a file, which is made, until the block or its process ends.

    Raises TimeoutError where another holds it for so long, and OSError on disks without locks.
    """
    import fcntl

    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise TimeoutError(errno.ETIMEDOUT, "its lock is held", str(path)) from None
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(held)


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder: fsync(2).
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def is_lfs_pointer(path: Path, size_bytes: int) -> bool:
    """Whether a file only says where git-lfs would get its content; one that is gone is none."""
    if size_bytes >= _POINTER_BYTES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """sha256 of a file's content in hexadecimal, read in chunks."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def backup_name(path: Path) -> Path:
    """Where a file that is replaced is kept: FILE.old, or FILE.old2 and so on beside others."""
    kept, number = path.with_name(f"{path.name}.old"), 1
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.old{number}")
    return kept


def read_tail(path: Path, limit_bytes: int) -> bytes:
    """The end of a file, at most limit_bytes of it. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
        return file.read(limit_bytes)


def tail_offset(file: BinaryIO | io.FileIO, lines: int) -> int:
    """Offset of the last `lines` whole lines. With 0 lines: of what follows the last newline."""
    position = file.seek(0, os.SEEK_END)
    # The newline that ends the first wanted line's predecessor.
    wanted = lines + 1
    while position > 0:
        start = max(0, position - _BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        cut = len(block)
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + cut + 1
        position = start
    return 0


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, which need not exist yet."""
    found = os.statvfs(nearest_folder(folder))
    return found.f_bavail * found.f_frsize


def nearest_folder(folder: Path) -> Path:
    """The folder, or the one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def disk_full(path: Path, needed_bytes: int | None) -> YokedError:
    """The error of a disk that cannot take what is needed."""
    needed = "" if needed_bytes is None else f"{needed_bytes:,} bytes are needed, "
    free, folder = free_bytes(path), nearest_folder(path)
    return fault("disk-full", path=path, needed=needed, free=free, folder=folder)


def expected_failure(problem: OSError) -> YokedError | None:
    """What a person can do something about: a full disk, a missing right. None: it may be a bug."""
    if problem.errno in NO_ROOM:
        return disk_full(Path(problem.filename or Path.home()), None)
    if problem.errno in _NO_DESCRIPTOR:
        try:
            import resource

            soft: object = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        except (ImportError, OSError):
            # To import takes a file.
            soft = "few"
        return YokedError(
            f"a process may hold no more files open: {soft} is the most (`ulimit -n`)",
            fix=(
                "ulimit -n 1024    in this shell, then the same command again",
                "where that is refused, take `ulimit -n` out of the start files, and log in again",
            ),
        )
    if problem.errno in _NO_RIGHT and isinstance(problem.filename, str):
        folder = nearest_folder(Path(problem.filename))
        return YokedError(
            f"{problem.filename}: {problem.strerror}",
            fix=f"ls -ld {path_word(folder)}    there shows whose it is",
        )
    if isinstance(problem, FileNotFoundError) and _own_folder_is_gone():
        return YokedError(
            "the folder in which this was started has been deleted",
            fix="cd ~    or to another folder that is there",
        )
    return None


def _own_folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False

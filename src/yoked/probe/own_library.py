"""Whether Python's own library is whole, and what Python made of sources is of these.

Sent to hosts as text, as smoke_test.py is: the standard library from Python 3.9 on, and no torch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import marshal
import os
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What systems have in packages of their own, what an installation writes its own paths into, and
# what no program imports.
_PASSED_OVER = frozenset({
    "__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "site-packages",
    "test", "tests", "tkinter", "turtledemo",
})  # fmt: skip
_WRITTEN_LATER = ("_sysconfigdata", "sitecustomize", "usercustomize")
# Lines that are comments and nothing else: anybody may have added some.
_COMMENTS = re.compile(rb"\n[ \t]*#[^\n]*")
# As long as Python itself may take to be built and installed.
_INSTALLATION_S = 3600.0
_MOST_FILES, _MOST_YOUNGER, _MOST_BYTES = 1500, 20, 4 << 20
# Where a file ends that lost its end: at the end of a block, or zeros are in the place of it.
_BLOCK, _ZEROS = 512, bytes(16)
# PEP 552: what stands before the marshalled code, and the mark of bytecode that is not compared.
_HEAD, _UNCHECKED = 16, b"\x01"


@functools.cache
def library() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Python's own library, and what is wrong with its bytecode, as `altered` of `installed`.

    build: of this Python; home: its folder; files: by name below that, a mark of each source
    without its lines of comments, and the size of each shared library; younger: those of them that
    were written long after the rest. It takes 0.05 s of CPU.
    """
    home = sysconfig.get_paths()["stdlib"] + os.sep
    installed_s = Path(str(os.__file__)).stat().st_mtime
    marks: dict[str, str] = {}
    younger: list[str] = []
    flaws = []
    for name, file in _files(home, ""):
        if len(marks) == _MOST_FILES:
            break
        try:
            # Many times; a Path takes longer than the question.
            status = os.stat(file)  # noqa: PTH116
            mark = _mark(file) if name.endswith(".py") else str(status.st_size)
        except OSError:
            continue
        marks[name] = mark
        if status.st_mtime > installed_s + _INSTALLATION_S:
            younger.append(name)
        if name.endswith(".py") and (flaw := bytecode_flaw(file)):
            flaws.append({**flaw, "package": None, "version": None})
    told = {"build": _build(home), "home": home, "files": marks, "younger": younger[:_MOST_YOUNGER]}
    return told, flaws


def _build(home: str) -> str:
    """A mark of the build of this Python, whose library lies there."""
    # Nix and Guix give one version other paths with each of their releases, and name the same time.
    place = home if home.startswith(("/nix/store/", "/gnu/store/")) else ""
    return hashlib.sha256(f"{sys.version}{place}".encode()).hexdigest()[:8]


def _files(folder: str, below: str) -> Iterator[tuple[str, str]]:
    """Sources and shared libraries of Python's own, in one order everywhere: name, path."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda each: each.name)
    except OSError:
        return
    for each in found:
        name = each.name
        if name in _PASSED_OVER or name.startswith((*_WRITTEN_LATER, "config-")):
            continue
        if each.is_dir(follow_symlinks=False):
            yield from _files(each.path, f"{below}{name}/")
        elif name.endswith((".py", ".so")):
            yield f"{below}{name}", each.path


def _mark(file: str) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        content = os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
    return f"{zlib.crc32(_COMMENTS.sub(b'', content)):08x}"


def bytecode_flaw(source: str) -> dict[str, str] | None:
    """Why what Python runs in the place of a source is not that: file, how; None: it is.

    bytecode: of another source, unseen. cut: not whole, though its head fits its source.
    Source: PEP 552. Bytecode that names the time of its source is compared by Python itself.
    """
    descriptor = -1
    try:
        compiled = importlib.util.cache_from_source(source)
        descriptor = os.open(compiled, os.O_RDONLY | os.O_NONBLOCK)
        head = os.read(descriptor, _HEAD)
        # One that is shorter than its head is made anew.
        if head[:4] != importlib.util.MAGIC_NUMBER or len(head) < _HEAD:
            return None
        if head[4:5] == _UNCHECKED and _hash_of(source) != head[8:]:
            return {"file": compiled, "how": "bytecode"}
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, len(_ZEROS), max(0, size - len(_ZEROS)))
        if size % _BLOCK and tail != _ZEROS:
            return None
        if _fits(head, source) and not _is_whole(os.pread(descriptor, size, 0)[_HEAD:]):
            return {"file": compiled, "how": "cut"}
    except (OSError, NotImplementedError):
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None


def _hash_of(source: str) -> bytes:
    return importlib.util.source_hash(Path(source).read_bytes())


def _fits(head: bytes, source: str) -> bool:
    """Whether Python takes bytecode with this head; otherwise it makes it anew."""
    if head[4:8] != bytes(4):
        return head[4:5] == _UNCHECKED or _hash_of(source) == head[8:]
    status = Path(source).stat()
    wanted = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return wanted == (int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:], "little"))


def _is_whole(code: bytes) -> bool:
    try:
        marshal.loads(code)  # noqa: S302 - what an import of it would load; nothing is run
    except (EOFError, ValueError, TypeError):
        return False
    return True

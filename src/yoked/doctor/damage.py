"""Whether a file of data is whole, as far as its kind tells and a few reads show.

A text with runs of zero bytes was given its size before its content came, and was cut off; formats
that say how long they are, or how they end, say whether they do.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES, _BLOCKS, _SMALL_BYTES = 4096, 64, 1 << 20
# A program may name folders with any number of files.
_MOST_FILES = 256
# No text has so many in a row, in UTF-16 or UTF-32 either.
_ZEROS = re.compile(rb"\0{8,}")
_TEXTS = frozenset({".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".md", ".list"})
_NPY_ITEM = re.compile(r"[<>|=]?([a-zA-Z])(\d+)")
# The end of a zip's directory may have a comment of 64 KiB behind it.
_ZIP_END, _ZIP_TAIL_BYTES = b"PK\5\6", 66_000
_CUT = "cut off: it has {} of the {} bytes that its header tells of"
_MOST_HEADER_BYTES = 1 << 24


def damage_below(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """{name: why} of files of a folder that are not whole. What cannot be read tells nothing."""
    found = {}
    for name in names:
        try:
            if why := damage_of(folder / name):
                found[name] = why
        except (OSError, ValueError, KeyError, TypeError, SyntaxError, RecursionError):
            # A file of another kind than it looks is nothing that is known to be damaged.
            continue
    return found


def damage_in(path: Path) -> dict[str, str]:
    """The same of a file, or of the first files of a folder, by their paths."""
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir())[:_MOST_FILES]
        return {str(path / name): why for name, why in damage_below(path, names).items()}
    return {str(path): why for why in damage_below(path.parent, [path.name]).values()}


def damage_of(path: Path) -> str | None:
    """What is wrong with a file; None: nothing that shows. Raises OSError, and what its header
    does to who reads it: ValueError, KeyError, TypeError, SyntaxError.
    """
    # A pipe would be waited for.
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(_BLOCK_BYTES)
        if path.suffix == ".safetensors":
            return _of_safetensors(stream, size)
        for magic, look in _KINDS.items():
            if head.startswith(magic):
                return look(stream, size)
        return _of_text(stream, size, head, path.suffix) if head else None


def _of_text(stream: BinaryIO, size: int, head: bytes, suffix: str) -> str | None:
    is_text = suffix in _TEXTS
    if not is_text:
        # A letter may be cut at the end of what was read.
        is_text = b"\0" not in head and "\ufffd" not in head[:-4].decode(errors="replace")
    if not is_text:
        return None
    if size <= _SMALL_BYTES:
        stream.seek(0)
        found = _ZEROS.search(stream.read())
        return None if found is None else (
            f"{len(found[0])} zero bytes from byte {found.start()}"
            f"{' to its end' if found.end() == size else ''}, in a text of {size}"
        )  # fmt: skip
    step = (size - _BLOCK_BYTES) // (_BLOCKS - 1)
    for number in range(_BLOCKS):
        stream.seek(number * step)
        if found := _ZEROS.search(stream.read(_BLOCK_BYTES)):
            return (f"zero bytes at byte {number * step + found.start()} of a text of {size} "
                    f"(of which {_BLOCKS} blocks were read)")  # fmt: skip
    return None


def _of_gzip(stream: BinaryIO, size: int) -> str | None:
    if size > _SMALL_BYTES:
        return _ends_in_zeros(stream, size)
    stream.seek(0)
    rest = stream.read()
    while rest.strip(b"\0"):
        one = zlib.decompressobj(wbits=31)
        try:
            left = _SMALL_BYTES * 16
            while rest and not one.eof and left > 0:
                left -= len(one.decompress(rest, 1 << 16))
                rest = one.unconsumed_tail
        except zlib.error as problem:
            return f"not to be unpacked: {problem}"
        if not one.eof:
            return "cut off: its gzip has no end" if left > 0 else None
        rest = one.unused_data
    return None


def _of_zip(stream: BinaryIO, size: int) -> str | None:
    tail = _tail(stream, size, _ZIP_TAIL_BYTES)
    return None if _ZIP_END in tail else "cut off: its zip has no directory at the end"


def _of_npy(stream: BinaryIO, size: int) -> str | None:
    stream.seek(6)
    version = stream.read(2)
    width = 2 if version[0] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _MOST_HEADER_BYTES:
        return None
    told = ast.literal_eval(stream.read(length).decode("latin-1").strip())
    item = _NPY_ITEM.fullmatch(told["descr"])
    if item is None or item[1] in "OV":
        return None
    item_bytes = int(item[2]) * (4 if item[1] == "U" else 1)
    return _cut(size, 8 + width + length + item_bytes * math.prod(told["shape"]))


def _of_safetensors(stream: BinaryIO, size: int) -> str | None:
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > size - 8 or length > _MOST_HEADER_BYTES:
        return _cut(size, 8 + length) if length < _MOST_HEADER_BYTES else None
    told = json.loads(stream.read(length))
    ends = [each["data_offsets"][1] for name, each in told.items() if name != "__metadata__"]
    return _cut(size, 8 + length + max(ends, default=0))


def _of_hdf5(stream: BinaryIO, size: int) -> str | None:
    """The superblock's address of the file's end: HDF5 File Format Specification, II.A."""
    stream.seek(8)
    block = stream.read(64)
    places = {0: (5, 32), 2: (1, 20), 3: (1, 20)}.get(block[0])
    if places is None or block[places[0]] != 8:
        return None
    end = int.from_bytes(block[places[1] : places[1] + 8], "little")
    return _cut(size, end)


def _ending(*marks: bytes) -> Callable[[BinaryIO, int], str | None]:
    def look(stream: BinaryIO, size: int) -> str | None:
        is_whole = _tail(stream, size, _BLOCK_BYTES).endswith(marks)
        return None if is_whole else "cut off: it does not end as such a file does"

    return look


def _ends_in_zeros(stream: BinaryIO, size: int) -> str | None:
    tail = _tail(stream, size, _BLOCK_BYTES)
    return None if tail.strip(b"\0") else f"its last {len(tail)} bytes are zero"


def _cut(size: int, wanted: int) -> str | None:
    return _CUT.format(size, wanted) if size < wanted else None


def _tail(stream: BinaryIO, size: int, most: int) -> bytes:
    stream.seek(max(0, size - most))
    return stream.read(most)


# By what the first bytes of such a file are.
_KINDS: dict[bytes, Callable[[BinaryIO, int], str | None]] = {
    b"\x1f\x8b": _of_gzip,
    b"PK\3\4": _of_zip,
    b"\x93NUMPY": _of_npy,
    b"\x89HDF\r\n\x1a\n": _of_hdf5,
    b"PAR1": _ending(b"PAR1"),
    b"ARROW1": _ending(b"ARROW1"),
    b"\xfd7zXZ\0": _ending(b"YZ"),
    b"\x89PNG\r\n": _ending(b"IEND\xaeB`\x82"),
    b"\x28\xb5\x2f\xfd": _ends_in_zeros,
    b"\xff\xd8\xff": _ends_in_zeros,
}

"""A file of data that is cut off, or was never filled, is known by what it says of itself."""

from __future__ import annotations

import gzip
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from yoked.doctor.damage import damage_below, damage_in, damage_of

ROWS = b"".join(b"%d\n" % number for number in range(4000))


def as_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(ROWS) + gzip.compress(2 * ROWS))


def as_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.txt", ROWS)


def as_npy(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.arange(4000, dtype=np.float32).reshape(40, 100))


def as_safetensors(path: Path) -> None:
    told = {"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "data_offsets": [0, len(ROWS)]}}
    header = json.dumps(told).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + ROWS)


def as_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1" + ROWS + b"PAR1")


def as_arrow(path: Path) -> None:
    path.write_bytes(b"ARROW1\0\0" + ROWS + b"ARROW1")


def as_xz(path: Path) -> None:
    path.write_bytes(lzma.compress(ROWS))


def as_hdf5(path: Path) -> None:
    block = b"\x89HDF\r\n\x1a\n" + bytes([2, 8, 8, 0]) + struct.pack("<QQQ", 0, 2**64 - 1, 9000)
    path.write_bytes(block.ljust(9000, b"\1"))


MAKERS = (as_gzip, as_zip, as_npy, as_safetensors, as_parquet, as_arrow, as_xz, as_hdf5)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_file_that_is_cut_off_is_found(
    make: Callable[[Path], None], part: float, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{make.__name__.removeprefix('as_')}"
    make(path)
    assert damage_of(path) is None

    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])

    assert "cut off" in str(damage_of(path))


def test_a_text_whose_second_half_was_never_filled_is_found(tmp_path: Path) -> None:
    path = tmp_path / "1.txt"
    path.write_bytes(b"5\n" * 50 + b"\0" * 100)

    assert damage_of(path) == "100 zero bytes from byte 100 to its end, in a text of 200"


def test_of_a_large_text_some_blocks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"row": 5}\n' * 300_000)
    assert damage_of(path) is None

    with path.open("r+b") as stream:
        stream.seek(1_500_000)
        stream.write(b"\0" * 200_000)

    assert "64 blocks were read" in str(damage_of(path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        ROWS,
        "Gr\u00f6\u00dfe \u2192\n".encode() * 400,
        "rows\n".encode("utf-16") * 400,
        "rows\n".encode("utf-32") * 400,
        bytes(9000),
        bytes([1, 0, 0, 0, 0, 0, 0, 0]) * 2000,
        b"\xfe\xff" * 10 + bytes(9000),
        b"\x93NUMPY of another kind",
    ],
)
def test_what_is_whole_or_of_an_unknown_kind_is_no_damage(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_bytes(content)

    assert damage_below(tmp_path, ["rows.bin", "none.txt"]) == {}


def test_an_empty_zip_is_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass

    assert damage_of(tmp_path / "a.zip") is None


def test_files_of_a_folder_are_told_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"5\n\0\0\0\0\0\0\0\0")
    (tmp_path / "b.txt").write_bytes(b"5\n")
    (tmp_path / "c").mkdir()

    assert list(damage_in(tmp_path)) == [str(tmp_path / "a.txt")]
    assert list(damage_in(tmp_path / "a.txt")) == [str(tmp_path / "a.txt")]

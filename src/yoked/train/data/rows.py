"""Rows of tokens in a memory-mapped file, and the order in which training reads them.

A row file is a header of 64 bytes and the rows, little-endian: uint16 if the vocabulary allows,
else uint32. It is written once, front to back, and never changed.

Training reads an endless stream: epoch after epoch, each a permutation of all rows. The permutation
is a function of seed, epoch and place. So row i of the stream is the same on every machine, for any
number of ranks and after any restart, and no state has to be stored for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yoked.core.fs import sha256_of
from yoked.errors import DataError

_MAGIC = b"YOKEROWS"
_VERSION = 1
# Magic, version, bytes a token, tokens a row, number of rows, size of the vocabulary.
_HEADER = struct.Struct("<8sIIQQQ")
_HEADER_BYTES = 64
# No model reads a row of so many, and numpy cannot shape an empty file of longer ones.
_MOST_ROW_TOKENS = 1 << 31
_BUFFER_BYTES = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest dtype for ids below `vocab_size`: uint16 or uint32, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class Stamp(NamedTuple):
    """Identity and time stamps of a file: while they are equal, the file has not changed."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: IO[bytes]) -> Stamp:
        """Stamp of an open file; its name may belong to another file by now."""
        found = os.fstat(file.fileno())
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class RowFile:
    """Packed rows, read only. Opening reads the header and maps the file.

    row_tokens: tokens in a row, T+1. opened: stamp of the mapped file.
    Raises DataError if the file is missing, not a row file, or truncated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
                size_bytes = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise _damaged(path, error.strerror or str(error)) from error
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise _damaged(path, "it does not begin like a row file")
        _, version, token_size, row_tokens, num_rows, vocab_size = _HEADER.unpack_from(header)
        if version != _VERSION or token_size != token_dtype(vocab_size).itemsize:
            raise _damaged(path, f"format {version} with {token_size} bytes a token is unknown")
        if not 0 < row_tokens <= _MOST_ROW_TOKENS or vocab_size == 0:
            raise _damaged(path, f"{row_tokens:,} tokens a row of a vocabulary of {vocab_size}")
        expected_bytes = _HEADER_BYTES + num_rows * row_tokens * token_size
        if size_bytes != expected_bytes:
            raise _damaged(path, f"{size_bytes:,} bytes long where {expected_bytes:,} are expected")
        self.num_rows = int(num_rows)
        self.row_tokens = int(row_tokens)
        self.vocab_size = int(vocab_size)
        shape = (self.num_rows, self.row_tokens)
        with path.open("rb") as file:
            self.opened = Stamp.of(file)
            self._rows: NDArray[Any] = (
                np.memmap(file, token_dtype(vocab_size), "r", _HEADER_BYTES, shape)
                if num_rows
                else np.empty(shape, token_dtype(vocab_size))
            )

    def __len__(self) -> int:
        return self.num_rows

    def rows(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows by number, int64, (len(indices), T+1). Raises IndexError outside 0 to num_rows.

        Raises DataError for a token outside the vocabulary: the model has no weights for it.
        """
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.num_rows):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {self.num_rows}")
        found = self._rows[numbers]
        if found.size and found.max() >= self.vocab_size:
            row = int(numbers[np.argmax(found.max(axis=1))])
            why = f"row {row} has token {found.max()}, of a vocabulary of {self.vocab_size}"
            raise _damaged(self.path, why)
        return found.astype(np.int64)

    def sha256(self) -> str:
        """sha256 of the file; reads all of it."""
        return sha256_of(self.path)


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be used: {why}",
        fix=f"remove the folder {path.parent} and prepare the data again",
    )


class RowWriter:
    """Writes a row file under a temporary name; `close` gives it its final name.

    As a context manager, it removes the file if the block raises.
    """

    def __init__(self, path: Path, *, row_tokens: int, vocab_size: int) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._dtype = token_dtype(vocab_size)
        self._shape = (row_tokens, vocab_size)
        self._file = self._temporary.open("wb", buffering=_BUFFER_BYTES)
        self._file.write(bytes(_HEADER_BYTES))  # the number of rows is known at the end
        self.num_rows = 0

    def write(self, row: NDArray[Any]) -> None:
        """Append a row, (T+1,), of ids below the size of the vocabulary."""
        assert row.shape == self._shape[:1], (row.shape, self._shape)
        self._file.write(row.astype(self._dtype, copy=False).tobytes())
        self.num_rows += 1

    def close(self) -> None:
        """Write the header, fsync the file, and rename it."""
        row_tokens, vocab_size = self._shape
        header = _HEADER.pack(
            _MAGIC, _VERSION, self._dtype.itemsize, row_tokens, self.num_rows, vocab_size
        )
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            if self._temporary.exists():
                # Closing flushes; on a full disk that fails again, and the first error counts.
                with contextlib.suppress(OSError):
                    self._file.close()
                self._temporary.unlink()


_ROUNDS = 8
_MIN_HALF_BITS = 2


class SampleStream:
    """The endless stream of training rows: epoch after epoch, reshuffled by seed.

    Place i of the stream belongs to epoch i // num_rows; within an epoch every row comes once.
    The permutation is a Feistel network of 8 rounds over the next power of four, repeated until it
    gives a row (cycle walking); its keys are BLAKE2b of seed and epoch. It uses no random generator
    of numpy or torch: their numbers differ between versions.
    """

    def __init__(self, rows: RowFile, seed: int) -> None:
        assert rows.num_rows > 0, f"{rows.path} has no rows"
        self._rows = rows
        self.seed = seed
        self.num_rows = rows.num_rows

    def row_number(self, place: int) -> int:
        """The row at a place of the stream, by its number in the file."""
        return int(self.row_numbers(place, place + 1)[0])

    def row_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the rows at places start to stop - 1, int64, (stop - start,)."""
        assert 0 <= start <= stop, (start, stop)
        numbers = np.empty(stop - start, dtype=np.int64)
        place = start
        while place < stop:
            epoch, offset = divmod(place, self.num_rows)
            count = min(stop - place, self.num_rows - offset)
            within = np.arange(offset, offset + count, dtype=np.uint64)
            shuffled = permute(within, self.num_rows, _round_keys(self.seed, epoch))
            numbers[place - start : place - start + count] = shuffled
            place += count
        return numbers

    def batch(self, start: int, stop: int) -> NDArray[np.int64]:
        """Rows at places start to stop - 1 of the stream, int64, (stop - start, T+1)."""
        return self._rows.rows(self.row_numbers(start, stop))


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """One key of 64 bits for each round."""
    digest = hashlib.blake2b(
        f"{seed} {epoch}".encode(), digest_size=8 * _ROUNDS, person=b"yoked rows"
    ).digest()
    return struct.unpack(f"<{_ROUNDS}Q", digest)


def permute(places: NDArray[np.uint64], size: int, keys: Sequence[int]) -> NDArray[np.uint64]:
    """Image of each place under the permutation of 0 to size - 1 that the keys select.

    Time and memory grow with the number of places, not with size: fewer than four walks on average.
    """
    half_bits = max(_MIN_HALF_BITS, ((size - 1).bit_length() + 1) // 2)  # 4^half_bits >= size
    result = _feistel(places, half_bits, keys)
    # A value past the end is encrypted again; its cycle leads back to a row.
    while len(outside := np.flatnonzero(result >= size)):
        result[outside] = _feistel(result[outside], half_bits, keys)
    return result


def _feistel(values: NDArray[np.uint64], half_bits: int, keys: Sequence[int]) -> NDArray[np.uint64]:
    """A permutation of 0 to 4^half_bits - 1."""
    left = values >> np.uint64(half_bits)
    right = values & np.uint64((1 << half_bits) - 1)
    for key in keys:
        left, right = right, left ^ (_mix(right + np.uint64(key)) >> np.uint64(64 - half_bits))
    return (left << np.uint64(half_bits)) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014); its high bits are the most random."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

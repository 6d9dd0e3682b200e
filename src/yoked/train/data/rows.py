"""Rows of tokens in a memory-mapped file, and the order in which training reads them.

A row file is its rows, one after the other, little-endian: uint16 if the vocabulary allows, else
uint32. `dataset.json` says how many rows it has, of which length. It is written once, front to
back, and never changed.

Training reads an endless stream: epoch after epoch, each a permutation of all rows. The permutation
is a function of seed, epoch and place. So row i of the stream is the same on every machine, for any
number of ranks and after any restart, and no state has to be stored for it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yoked.errors import DataError
from yoked.hashes import Stamp


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest dtype for ids below `vocab_size`: uint16 or uint32, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class RowFile:
    """Packed rows, read only and memory-mapped.

    num_rows: at least 1. row_tokens: tokens in a row, T+1. opened: stamp of the mapped file.
    Raises DataError if the file is missing or of another size.
    """

    def __init__(self, path: Path, *, num_rows: int, row_tokens: int, vocab_size: int) -> None:
        assert num_rows > 0, f"{path} has {num_rows} rows"
        self.path = path
        self.num_rows = num_rows
        self.vocab_size = vocab_size
        dtype = token_dtype(vocab_size)
        expected_bytes = num_rows * row_tokens * dtype.itemsize
        try:
            with path.open("rb") as file:
                # Its name may belong to another file by now.
                self.opened = Stamp.of(file.fileno())
                if (size_bytes := self.opened.size_bytes) != expected_bytes:
                    why = f"{size_bytes:,} bytes long where {expected_bytes:,} are expected"
                    raise _damaged(path, why)
                shape = (num_rows, row_tokens)
                self._rows: NDArray[Any] = np.memmap(file, dtype, "r", shape=shape)
        except OSError as error:
            raise _damaged(path, error.strerror or str(error)) from error

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


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be used: {why}",
        fix=f"remove the folder {path.parent} and prepare the data again",
    )


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
        self._rows = rows
        self.seed = seed
        self.num_rows = rows.num_rows

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

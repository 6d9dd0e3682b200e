"""Packing documents into rows of equal length. Pure: token arrays in, rows out.

There are two methods. `pieces` cuts each document into pieces that fit a row, each with its own
`<|bos|>`, and keeps nearly every token. `bestfit` is nanochat's method with whole documents: a
document that does not fit is cropped, and the rest of it is dropped. Both fill a row from a buffer
of at least 1,000 documents or pieces, which is refilled in batches of at most 128. They take the
largest that fits; if none fits, they crop the shortest. On ties they take the earliest. There is
no padding. The same input gives the same rows, bit for bit.

Token counts leave out `<|bos|>`, because the packer decides how often that is written.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Packing = Literal["pieces", "bestfit"]
# The text tokens of a document, without <|bos|>; of any unsigned dtype.
Tokens = NDArray[Any]

BUFFER_DOCUMENTS = 1_000
BATCH_DOCUMENTS = 128


@dataclass
class PackStats:
    """Counts of tokens, updated while rows are made.

    tokens_kept + tokens_dropped is the text tokens of all documents;
    tokens_kept + bos_tokens is the tokens of all rows.
    """

    rows: int = 0
    tokens_kept: int = 0
    tokens_dropped: int = 0
    bos_tokens: int = 0


class _Shelf:
    """Buffered documents by length. Each length has a queue, so ties go to the earliest.

    nanochat has a list and takes the first index. That is the earliest too: a list keeps its order
    when entries are removed.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Tokens]] = {}
        self._lengths: list[int] = []
        self.count = 0

    def put(self, document: Tokens) -> None:
        length = len(document)
        queue = self._queues.get(length)
        if queue is None:
            queue = self._queues[length] = deque()
            insort(self._lengths, length)
        queue.append(document)
        self.count += 1

    def take_largest(self, max_length: int) -> Tokens | None:
        """The largest of at most `max_length` text tokens."""
        place = bisect_right(self._lengths, max_length) - 1
        return self._take(place) if place >= 0 else None

    def take_shortest(self) -> Tokens:
        return self._take(0)

    def _take(self, place: int) -> Tokens:
        length = self._lengths[place]
        queue = self._queues[length]
        document = queue.popleft()
        if not queue:
            del self._queues[length], self._lengths[place]
        self.count -= 1
        return document


def pack_bestfit(
    batches: Iterable[Sequence[Tokens]],
    *,
    row_tokens: int,
    bos_id: int,
    stats: PackStats,
    dtype: DTypeLike = np.int64,
) -> Iterator[NDArray[Any]]:
    """Pack as nanochat does on one rank, until the data ends.

    batches: documents in the batches in which the buffer is refilled.
    Yields rows of shape (row_tokens,), each beginning with `<|bos|>`. The last row, if it is not
    full, is dropped and counted.
    """
    return _pack(iter(batches), row_tokens, bos_id, stats, dtype, keep_rest=False)


def pack_pieces(
    documents: Iterable[Tokens],
    *,
    row_tokens: int,
    bos_id: int,
    stats: PackStats,
    dtype: DTypeLike = np.int64,
) -> Iterator[NDArray[Any]]:
    """Cut documents into pieces of at most `row_tokens`, `<|bos|>` included, and pack those.

    The rest of a cropped piece is a piece again, so only the last row is dropped.
    Yields rows of shape (row_tokens,), each beginning with `<|bos|>`.
    """
    pieces = _pieces(documents, row_tokens - 1)
    batches = iter(lambda: list(islice(pieces, BATCH_DOCUMENTS)), [])
    return _pack(batches, row_tokens, bos_id, stats, dtype, keep_rest=True)


def _pieces(documents: Iterable[Tokens], max_length: int) -> Iterator[Tokens]:
    for document in documents:
        for start in range(0, len(document), max_length):
            yield document[start : start + max_length]


def _pack(
    batches: Iterator[Sequence[Tokens]],
    row_tokens: int,
    bos_id: int,
    stats: PackStats,
    dtype: DTypeLike,
    *,
    keep_rest: bool,
) -> Iterator[NDArray[Any]]:
    assert row_tokens >= 2, row_tokens  # <|bos|> and one target
    shelf = _Shelf()
    more = True
    while True:
        row = np.empty(row_tokens, dtype=dtype)
        position = text_tokens = bos_tokens = 0
        while position < row_tokens:
            while more and shelf.count < BUFFER_DOCUMENTS:  # before each document, as nanochat does
                more = _refill(shelf, batches)
            if shelf.count == 0:
                stats.tokens_dropped += text_tokens
                return
            room = row_tokens - position - 1  # behind <|bos|>; where it is 0, that ends the row
            document = shelf.take_largest(room)
            if document is None:
                whole = shelf.take_shortest()
                document, rest = whole[:room], whole[room:]
                if keep_rest:
                    shelf.put(rest)
                else:
                    stats.tokens_dropped += len(rest)
            row[position] = bos_id
            row[position + 1 : position + 1 + len(document)] = document
            position += 1 + len(document)
            text_tokens += len(document)
            bos_tokens += 1
        stats.rows += 1
        stats.tokens_kept += text_tokens
        stats.bos_tokens += bos_tokens
        yield row


def _refill(shelf: _Shelf, batches: Iterator[Sequence[Tokens]]) -> bool:
    """Put the next batch on the shelf; returns False if there is none."""
    batch = next(batches, None)
    if batch is None:
        return False
    for document in batch:
        shelf.put(document)
    return True

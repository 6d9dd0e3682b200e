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

from bisect import bisect_left, bisect_right, insort_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

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


def piece_batches(documents: Iterable[Tokens], row_tokens: int) -> Iterator[list[Tokens]]:
    """Cut documents into pieces that fit a row of `row_tokens` behind `<|bos|>`, in batches."""
    length = row_tokens - 1
    pieces = (
        document[start : start + length]
        for document in documents
        for start in range(0, len(document), length)
    )
    while batch := list(islice(pieces, BATCH_DOCUMENTS)):
        yield batch


def pack(
    batches: Iterable[Sequence[Tokens]],
    *,
    row_tokens: int,
    bos_id: int,
    stats: PackStats,
    keep_rest: bool,
    dtype: DTypeLike = np.int64,
) -> Iterator[NDArray[Any]]:
    """Pack documents, or pieces of them, until they end.

    batches: the batches in which the buffer is refilled.
    keep_rest: put the rest of a cropped document back; False: drop it, as nanochat does.
    Yields rows of shape (row_tokens,), each beginning with `<|bos|>`. The last row, if it is not
    full, is dropped and counted.
    """
    assert row_tokens >= 2, row_tokens  # <|bos|> and one target
    refills = iter(batches)
    more = True
    # Sorted by length, and those of equal length by age. nanochat searches a list for the first
    # index, which is the earliest too: a list keeps its order when entries are removed.
    buffer: list[Tokens] = []
    while True:
        row = np.empty(row_tokens, dtype=dtype)
        position = text_tokens = bos_tokens = 0
        while position < row_tokens:
            while more and len(buffer) < BUFFER_DOCUMENTS:  # before each document, as nanochat does
                batch = next(refills, None)
                more = batch is not None
                buffer.extend(batch or ())
                buffer.sort(key=len)  # stable: equal lengths stay in order of age
            if not buffer:
                stats.tokens_dropped += text_tokens
                return
            room = row_tokens - position - 1  # behind <|bos|>; where it is 0, that ends the row
            if fitting := bisect_right(buffer, room, key=len):
                largest = len(buffer[fitting - 1])
                document = buffer.pop(bisect_left(buffer, largest, key=len))
            else:
                whole = buffer.pop(0)
                document, rest = whole[:room], whole[room:]
                if keep_rest:
                    insort_right(buffer, rest, key=len)
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

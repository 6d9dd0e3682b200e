import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from yoked.train.data.corpus import open_corpus
from yoked.train.data.pack import BATCH_DOCUMENTS, PackStats, pack, piece_batches
from yoked.train.data.prepare import nanochat_batches

BOS = 9_999
Tokens = NDArray[np.int64]


def documents_of(lengths: list[int]) -> list[Tokens]:
    """Documents without <|bos|>, in which every token of the corpus is another one."""
    starts = np.cumsum([0, *lengths])
    return [10_000 + np.arange(a, b) for a, b in itertools.pairwise(starts)]


def batched(documents: list[Tokens], size: int = BATCH_DOCUMENTS) -> Iterator[list[Tokens]]:
    return (documents[i : i + size] for i in range(0, len(documents), size))


def bestfit(
    documents: list[Tokens], row_tokens: int, stats: PackStats | None = None
) -> Iterator[Tokens]:
    return pack(
        batched(documents),
        row_tokens=row_tokens,
        bos_id=BOS,
        stats=stats or PackStats(),
        keep_rest=False,
    )


def pieces(
    documents: list[Tokens], row_tokens: int, stats: PackStats | None = None
) -> Iterator[Tokens]:
    return pack(
        piece_batches(documents, row_tokens),
        row_tokens=row_tokens,
        bos_id=BOS,
        stats=stats or PackStats(),
        keep_rest=True,
    )


def naive_bestfit(documents: list[Tokens], row_tokens: int, buffer_size: int) -> list[list[int]]:
    """Best fit in the plainest way: search the whole buffer for each document."""
    rows, buffer, batches = [], [], batched([np.append([BOS], doc) for doc in documents])
    while True:
        row: list[int] = []
        while len(row) < row_tokens:
            while len(buffer) < buffer_size and (batch := next(batches, None)):
                buffer.extend(batch)
            if not buffer:
                return rows
            room = row_tokens - len(row)
            fitting = [i for i, doc in enumerate(buffer) if len(doc) <= room]
            best = max(fitting, key=lambda i: len(buffer[i]), default=None)
            if best is None:
                best = min(range(len(buffer)), key=lambda i: len(buffer[i]))
            row.extend(buffer.pop(best)[:room].tolist())
        rows.append(row)


many_lengths = st.lists(st.integers(0, 40), max_size=60) | st.builds(
    lambda seed, count: np.random.default_rng(seed).integers(0, 60, count).tolist(),
    st.integers(0, 2**32),
    st.integers(900, 1_500),
)


@settings(max_examples=40, deadline=None)  # the plain search takes its time
@given(many_lengths, st.integers(2, 50))
def test_bestfit_is_what_a_search_of_the_whole_buffer_gives(
    lengths: list[int], row_tokens: int
) -> None:
    documents = documents_of(lengths)

    rows = bestfit(documents, row_tokens)

    assert [row.tolist() for row in rows] == naive_bestfit(documents, row_tokens, 1_000)


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(2, 50), st.booleans())
def test_rows_are_full_begin_with_bos_and_every_token_is_accounted_for(
    lengths: list[int], row_tokens: int, whole: bool
) -> None:
    documents, stats = documents_of(lengths), PackStats()

    rows = list((bestfit if whole else pieces)(documents, row_tokens, stats))

    assert all(row.shape == (row_tokens,) and row[0] == BOS for row in rows)
    text = [token for row in rows for token in row.tolist() if token != BOS]
    # Nothing twice, and nothing that no document had.
    assert len(set(text)) == len(text) == stats.tokens_kept
    assert stats.tokens_kept + stats.tokens_dropped == sum(lengths)
    assert stats.tokens_kept + stats.bos_tokens == stats.rows * row_tokens
    assert stats.rows == len(rows)


@given(st.lists(st.integers(0, 200), max_size=80), st.integers(2, 50))
def test_pieces_lose_less_than_a_row(lengths: list[int], row_tokens: int) -> None:
    stats = PackStats()

    list(pieces(documents_of(lengths), row_tokens, stats))

    assert stats.tokens_dropped < row_tokens


@given(st.lists(st.integers(0, 200), max_size=40), st.integers(3, 50))
def test_a_piece_is_tokens_that_follow_one_another_in_a_document(
    lengths: list[int], row_tokens: int
) -> None:
    documents = documents_of(lengths)
    document_of = {token: number for number, doc in enumerate(documents) for token in doc.tolist()}

    rows = pieces(documents, row_tokens)

    for row in rows:
        for before, after in zip(row[:-1].tolist(), row[1:].tolist(), strict=True):
            if BOS not in (before, after):
                assert after == before + 1
                assert document_of[before] == document_of[after]


def test_a_long_document_fills_rows_in_its_order() -> None:
    stats = PackStats()

    rows = list(pieces(documents_of([10]), 5, stats))

    assert [row.tolist() for row in rows] == [
        [BOS, 10_000, 10_001, 10_002, 10_003],
        [BOS, 10_004, 10_005, 10_006, 10_007],
    ]
    assert (stats.tokens_kept, stats.tokens_dropped) == (8, 2)


def test_bestfit_throws_the_remainder_of_a_cropped_document_away() -> None:
    stats = PackStats()

    rows = list(bestfit(documents_of([10]), 5, stats))

    assert [row.tolist() for row in rows] == [[BOS, 10_000, 10_001, 10_002, 10_003]]
    assert (stats.tokens_kept, stats.tokens_dropped) == (4, 6)


def test_equal_lengths_are_taken_in_their_order() -> None:
    rows = bestfit(documents_of([2, 2, 2, 2]), 6)

    assert [row[row != BOS].tolist() for row in rows] == [
        [10_000, 10_001, 10_002, 10_003],
        [10_004, 10_005, 10_006, 10_007],
    ]


def test_the_buffer_is_refilled_before_it_falls_below_a_thousand() -> None:
    # The exact fit is the last document of the batch with which the buffer reaches 1,000.
    inside, outside = documents_of([3] * 1_023 + [7]), documents_of([3] * 1_024 + [7])

    def first_row(documents: list[Tokens]) -> list[int]:
        return next(bestfit(documents, 8)).tolist()

    assert first_row(inside).count(BOS) == 1
    assert first_row(outside).count(BOS) == 2


def test_no_documents_give_no_rows() -> None:
    assert list(pieces([], 4)) == []
    assert list(bestfit([], 4)) == []


NANOCHAT_ROWS = """
import sys, numpy as np
import nanochat.dataset, nanochat.dataloader as loader
folder, out, T, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
nanochat.dataset.DATA_DIR = folder
class Numbers:
    def get_bos_token_id(self): return 9999
    def encode(self, texts, prepend, num_threads):
        return [[prepend, *map(int, text.split())] for text in texts]
batches = loader.tokenizing_distributed_data_loader_with_state_bos_bestfit(
    Numbers(), 1, T, "train", device="cpu")
result = []
for _ in range(rows):
    inputs, targets, _ = next(batches)
    result.append(inputs[0].tolist() + targets[0, -1:].tolist())
np.save(out, np.array(result))
"""


def test_bestfit_gives_the_rows_of_nanochats_own_loader(tmp_path: Path) -> None:
    checkout = os.environ.get("NANOCHAT_CHECKOUT")
    if not checkout:
        pytest.skip("set NANOCHAT_CHECKOUT to a checkout of nanochat to compare with its loader")
    lengths = np.random.default_rng(1).integers(0, 90, 4_000).tolist()
    documents = documents_of(lengths)
    texts = [" ".join(map(str, doc.tolist())) for doc in documents]
    (tmp_path / "shards").mkdir()
    for name, held in (("shard_00000", texts), ("shard_00001", ["1"])):
        # Row groups that are no multiple of 128 shift its batches.
        pq.write_table(
            pa.table({"text": held}), tmp_path / "shards" / f"{name}.parquet", row_group_size=300
        )
    corpus = open_corpus(tmp_path / "shards")
    numbers = (
        (np.array(document.text.split(), dtype=np.int64), document.group)
        for split, document in corpus.split_documents()
        if split == "train"
    )

    batches, stats = nanochat_batches(numbers), PackStats()
    ours = list(pack(batches, row_tokens=65, bos_id=BOS, stats=stats, keep_rest=False))
    # Its loader begins anew when the data ends, so the rows before the buffer drains are compared.
    count = int(0.6 * len(ours))
    command = [sys.executable, "-c", NANOCHAT_ROWS, str(tmp_path / "shards")]
    command += [str(tmp_path / "rows.npy"), "64", str(count)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": checkout})

    assert count > 500
    assert np.array_equal(np.load(tmp_path / "rows.npy"), ours[:count])

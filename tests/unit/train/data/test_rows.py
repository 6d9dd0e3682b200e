from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.errors import DataError
from yoked.train.data.rows import RowFile, SampleStream, permute, token_dtype

MAX_KEY = 2**64 - 1
keys = st.lists(st.integers(0, MAX_KEY), min_size=8, max_size=8)


def write_rows(path: Path, rows: list[list[int]], vocab_size: int = 1_000) -> RowFile:
    np.array(rows, token_dtype(vocab_size)).tofile(path)
    return RowFile(path, num_rows=len(rows), row_tokens=len(rows[0]), vocab_size=vocab_size)


def numbered_rows(path: Path, count: int) -> RowFile:
    return write_rows(path, [[number, 0] for number in range(count)], vocab_size=count + 1)


@pytest.mark.parametrize(("vocab_size", "token_bytes"), [(65_536, 2), (65_537, 4)])
def test_rows_come_back_as_written_in_the_smallest_dtype(
    tmp_path: Path, vocab_size: int, token_bytes: int
) -> None:
    top = vocab_size - 1
    rows = [[0, 1, top], [top, 5, 6], [7, top, 9]]

    file = write_rows(tmp_path / "x.rows", rows, vocab_size)

    found = file.rows([2, 0, 2])
    assert found.dtype == np.int64
    assert found.tolist() == [rows[2], rows[0], rows[2]]
    assert (len(file), file.num_rows, file.vocab_size) == (3, 3, vocab_size)
    assert (tmp_path / "x.rows").stat().st_size == 9 * token_bytes


def test_the_format_is_the_one_that_other_machines_read(tmp_path: Path) -> None:
    (tmp_path / "x.rows").write_bytes(bytes([1, 0, 2, 1, 3, 0, 4, 0]))

    file = RowFile(tmp_path / "x.rows", num_rows=2, row_tokens=2, vocab_size=300)

    assert file.rows([0, 1]).tolist() == [[1, 258], [3, 4]]


def test_no_indices_are_fine(tmp_path: Path) -> None:
    assert write_rows(tmp_path / "x.rows", [[1, 2, 3]]).rows([]).shape == (0, 3)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_row_that_is_not_there_is_an_error(tmp_path: Path, index: int) -> None:
    file = numbered_rows(tmp_path / "x.rows", 3)

    with pytest.raises(IndexError):
        file.rows([index])


def test_a_token_outside_the_vocabulary_is_an_error_that_names_its_row(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    file = write_rows(tmp_path / "x.rows", [[1, 2], [3, 4], [5, 100]], vocab_size=100)

    assert file.rows([0, 1]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError) as caught:
        file.rows([1, 2, 0])
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", [b"", b"PAR1", bytes(7), bytes(9)])
def test_a_file_of_another_size_is_refused(
    tmp_path: Path, content: bytes, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "x.rows"
    path.write_bytes(content)

    with pytest.raises(DataError) as caught:
        RowFile(path, num_rows=2, row_tokens=2, vocab_size=1_000)
    assert str(caught.value) == snapshot

    assert str(path) in caught.value.what


def test_a_missing_file_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(DataError) as caught:
        RowFile(tmp_path / "gone.rows", num_rows=1, row_tokens=2, vocab_size=1_000)
    assert str(caught.value) == snapshot


@given(st.integers(1, 3_000), keys)
def test_every_key_gives_a_permutation(size: int, round_keys: list[int]) -> None:
    places = np.arange(size, dtype=np.uint64)

    found = permute(places, size, round_keys)

    assert np.array_equal(np.sort(found), places)


@given(st.integers(1, 2**62), st.integers(0, MAX_KEY), keys)
def test_a_place_among_billions_has_its_row_without_the_others(
    size: int, place: int, round_keys: list[int]
) -> None:
    found = permute(np.array([place % size], dtype=np.uint64), size, round_keys)

    assert 0 <= int(found[0]) < size


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**70))
@settings(max_examples=50)
def test_the_stream_is_the_same_however_it_is_asked(
    tmp_path_factory: pytest.TempPathFactory, start: int, count: int, seed: int
) -> None:
    rows = numbered_rows(tmp_path_factory.getbasetemp() / "asked.rows", 37)
    stream = SampleStream(rows, seed)

    together = stream.row_numbers(start, start + count).tolist()

    assert together == [stream.row_numbers(i, i + 1)[0] for i in range(start, start + count)]
    assert together == SampleStream(rows, seed).batch(start, start + count)[:, 0].tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 100, 257])
def test_each_epoch_has_every_row_exactly_once(tmp_path: Path, count: int) -> None:
    stream = SampleStream(numbered_rows(tmp_path / "x.rows", count), seed=3)

    for epoch in range(5):
        epoch_rows = stream.row_numbers(epoch * count, (epoch + 1) * count)
        assert sorted(epoch_rows.tolist()) == list(range(count))


def test_epochs_and_seeds_differ(tmp_path: Path) -> None:
    rows = numbered_rows(tmp_path / "x.rows", 100)

    orders = {
        tuple(SampleStream(rows, seed).row_numbers(100 * epoch, 100 * (epoch + 1)).tolist())
        for seed in (1, 2, -1)
        for epoch in range(4)
    }

    assert len(orders) == 12


def test_the_order_is_shuffled_well(tmp_path: Path) -> None:
    size = 10_000
    order = SampleStream(numbered_rows(tmp_path / "x.rows", size), 1).row_numbers(0, size)

    # Of a random order: correlations below 4/sqrt(size), about 1 place in all fixed.
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.04
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.04
    assert (order == np.arange(size)).sum() < 10


def test_the_order_is_the_one_that_every_version_and_platform_has(tmp_path: Path) -> None:
    # Computed once and kept: a change would reorder the data of runs that are resumed.
    stream = SampleStream(numbered_rows(tmp_path / "x.rows", 10), seed=42)

    assert stream.row_numbers(0, 20).tolist() == [
        2,
        6,
        8,
        0,
        5,
        7,
        3,
        1,
        9,
        4,
        2,
        7,
        0,
        8,
        9,
        6,
        5,
        4,
        3,
        1,
    ]

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.costmodel.schedule import (
    MOST_BYTES,
    activation_numbers,
    max_deferred_backwards,
    schedule_rows,
)


@given(rows=st.integers(0, 300), batch=st.integers(1, 16), deferred=st.integers(1, 8))
def test_every_row_is_in_one_part_and_only_whole_micro_batches_wait(
    rows: int, batch: int, deferred: int
) -> None:
    parts = schedule_rows(rows, batch, deferred)

    first, second = parts.deferred
    assert parts.early + first + second + parts.last == rows
    assert min(parts.early, first, second, parts.last) >= 0
    assert parts.early % batch == first % batch == second % batch == 0
    assert first + second <= (deferred - 1) * batch
    assert (0 < parts.last <= batch) == (rows > 0)
    # Nothing is done early that could wait.
    assert not parts.early or first + second == (deferred - 1) * batch


def test_a_rank_with_few_micro_batches_defers_all() -> None:
    assert schedule_rows(7, 2, 8) == (0, (4, 2), 1, True)
    assert schedule_rows(16, 2, 8) == (0, (10, 4), 2, True)
    assert schedule_rows(2, 2, 8) == (0, (0, 0), 2, True)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [(0, (0, (0, 0), 0)), (2, (0, (0, 0), 2)), (4, (2, (0, 0), 2)), (7, (4, (2, 0), 1)),
     (16, (8, (4, 2), 2)), (32, (16, (8, 6), 2))],
)  # fmt: skip
def test_where_none_waits_a_part_is_about_half_of_what_is_left(
    rows: int, parts: tuple[int, tuple[int, int], int]
) -> None:
    assert schedule_rows(rows, 2, 0) == (*parts, False)


@pytest.mark.parametrize(
    ("tokens", "n_embd", "n_layer", "expected"),
    [(1024, 256, 4, 8), (1024, 512, 8, 2), (32_768, 1280, 20, 1)],
)
def test_deferred_activations_fit(tokens: int, n_embd: int, n_layer: int, expected: int) -> None:
    found = max_deferred_backwards(tokens, n_embd, n_layer)

    assert found == expected
    assert found == 1 or found * 4 * activation_numbers(tokens, n_embd, n_layer) <= MOST_BYTES

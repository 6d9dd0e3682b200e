from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.train.config import TrainConfig
from yoked.train.shares import settle_shares, split_rows

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(lambda w: sum(w) > 0)


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_every_row_has_exactly_one_rank_in_the_order_of_ranks(rows, weights):
    ranges = split_rows(rows, weights)

    assert len(ranges) == len(weights)
    assert [row for part in ranges for row in part] == list(range(rows))


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_a_share_is_proportional_to_within_one_row(rows, weights):
    total = sum(Fraction(weight) for weight in weights)

    for part, weight in zip(split_rows(rows, weights), weights, strict=True):
        assert abs(len(part) - float(rows * Fraction(weight) / total)) < 1 + 1e-9


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_a_rank_of_weight_zero_computes_nothing(rows, weights):
    for part, weight in zip(split_rows(rows, weights), weights, strict=True):
        assert weight > 0 or len(part) == 0


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_a_heavier_rank_never_has_fewer_rows(rows, weights):
    parts = split_rows(rows, weights)
    by_weight = sorted(zip(weights, (len(part) for part in parts), strict=True))

    assert [count for _, count in by_weight] == sorted(count for _, count in by_weight)


@pytest.mark.parametrize(
    ("rows", "weights", "counts"),
    [
        (8, [3, 1], [6, 2]),
        (1, [1, 1, 1, 1], [1, 0, 0, 0]),
        (5, [1, 1, 1], [2, 2, 1]),
        (4, [0, 1, 0], [0, 4, 0]),
        (10, [0.1] * 10, [1] * 10),
        # 1.43, 2.86, 5.71: the two largest remainders are those of the last ranks.
        (10, [1, 2, 4], [1, 3, 6]),
    ],
)
def test_what_does_not_divide_goes_to_the_largest_remainders(rows, weights, counts):
    assert [len(part) for part in split_rows(rows, weights)] == counts


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2]])
def test_weights_that_cannot_divide_anything_are_refused(weights):
    with pytest.raises(AssertionError):
        split_rows(4, weights)


@pytest.mark.parametrize(("balance", "weights"), [("auto", (26, 6)), ("off", (1, 1))])
def test_a_run_goes_on_with_its_last_rows_unless_they_are_not_to_move(balance, weights):
    def never():
        raise AssertionError("nothing is to be measured")

    found = settle_shares(TrainConfig(balance=balance), ["i9", "laptop"], (26, 6), never)

    assert found.weights == weights
    assert found.live == (balance == "auto")

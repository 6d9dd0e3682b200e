from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yoked.costmodel.assignment import LinearCost, assign_rows, level_head_work, split_by_weight

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(lambda w: sum(w) > 0)


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_every_row_has_exactly_one_rank_in_the_order_of_ranks(rows, weights):
    ranges = split_by_weight(rows, weights)

    assert len(ranges) == len(weights)
    assert [row for part in ranges for row in part] == list(range(rows))


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_a_share_is_proportional_to_within_one_row(rows, weights):
    total = sum(Fraction(weight) for weight in weights)

    for part, weight in zip(split_by_weight(rows, weights), weights, strict=True):
        assert abs(len(part) - float(rows * Fraction(weight) / total)) < 1 + 1e-9


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
def test_a_rank_of_weight_zero_computes_nothing(rows, weights):
    for part, weight in zip(split_by_weight(rows, weights), weights, strict=True):
        assert weight > 0 or len(part) == 0


@given(rows=st.integers(0, 1000), weights=WEIGHTS)
@example(rows=124, weights=[853681.0, 999999.9999999999, 1000000.0])
def test_a_heavier_rank_never_has_fewer_rows(rows, weights):
    parts = split_by_weight(rows, weights)
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
    assert [len(part) for part in split_by_weight(rows, weights)] == counts


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2]])
def test_weights_that_cannot_divide_anything_are_refused(weights):
    with pytest.raises(AssertionError):
        split_by_weight(4, weights)


# --- whole rows

SECONDS = st.floats(0.01, 10)
COSTS = st.lists(st.builds(LinearCost, st.floats(0, 10), SECONDS), min_size=1, max_size=4)


def slowest_s(rows, costs):
    return max(cost.step_s(count) for cost, count in zip(costs, rows, strict=True))


@given(rows=st.integers(0, 7), costs=COSTS)
@settings(max_examples=60)
def test_no_assignment_ends_a_step_sooner(rows, costs):
    found = assign_rows(rows, [cost.step_s for cost in costs])

    every = (c for c in product(range(rows + 1), repeat=len(costs)) if sum(c) == rows)
    assert slowest_s(found, costs) == min(slowest_s(counts, costs) for counts in every)


@given(rows=st.integers(0, 500), costs=COSTS)
@settings(max_examples=40)
def test_every_row_is_assigned(rows, costs):
    found = assign_rows(rows, [cost.step_s for cost in costs])

    assert sum(found) == rows
    assert min(found) >= 0


# --- work that is moved to end together


@st.composite
def ranks(draw):
    """(rows, step_s, head_s) by rank."""
    count = draw(st.integers(1, 5))
    each = st.lists(st.floats(0.1, 100), min_size=count, max_size=count)
    rows = st.lists(st.integers(0, 30), min_size=count, max_size=count)
    return draw(rows), draw(each), draw(each)


@given(ranks())
def test_work_is_moved_and_none_is_lost(given_ranks):
    rows, step_s, head_s = given_ranks
    work = level_head_work(rows, step_s, head_s)

    assert sum(work) == pytest.approx(sum(rows), abs=1e-6 * (1 + sum(rows)))
    assert all(part >= 0 for part in work)
    assert all(part == 0 for part, count in zip(work, rows, strict=True) if not count)


@given(ranks())
def test_ranks_that_can_give_and_take_end_together(given_ranks):
    rows, step_s, head_s = given_ranks
    work = level_head_work(rows, step_s, head_s)

    ends_s = [
        took_s + each_s * (part - count)
        for took_s, each_s, part, count in zip(step_s, head_s, work, rows, strict=True)
    ]
    free = [end_s for end_s, part in zip(ends_s, work, strict=True) if part > 1e-9]
    # Who has given all it can is later still.
    assert all(end_s == pytest.approx(free[0], rel=1e-6) for end_s in free)
    assert not free or all(
        end_s >= free[0] * (1 - 1e-6) for end_s, count in zip(ends_s, rows, strict=True) if count
    )


def test_half_of_what_two_equal_ranks_are_apart_is_moved():
    assert level_head_work([5, 5], [10.0, 14.0], [1.0, 1.0]) == (7.0, 3.0)
    assert level_head_work([5, 1], [10.0, 14.0], [1.0, 1.0]) == (6.0, 0.0)
    assert level_head_work([0, 5], [10.0, 14.0], [1.0, 1.0]) == (0.0, 5.0)

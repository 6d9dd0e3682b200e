"""The lm_head on the fastest rank alone: who has how many rows, and when it does others'."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.timeline.fastest import OneHead, fastest_has_it, turn

SPEEDS = st.lists(st.floats(0.1, 100), min_size=2, max_size=8)


@given(speeds=SPEEDS, part=st.floats(0.1, 0.8))
def test_ranks_are_done_together_where_the_fastest_has_the_time(speeds, part):
    fastest = speeds.index(max(speeds))
    one = OneHead(fastest, part)
    rows = one.row_weights(speeds)

    assert min(rows) >= 0
    took = [work / speed for work, speed in zip(one.work(rows), speeds, strict=True)]
    if speeds[fastest] >= part * sum(speeds):
        assert sum(rows) == pytest.approx(1)
        assert took == pytest.approx([1 / sum(speeds)] * len(speeds))
    else:
        assert rows[fastest] == 0


@given(rows=st.lists(st.integers(0, 64), min_size=2, max_size=8), part=st.floats(0.1, 0.8))
def test_all_rows_are_work_of_some_rank(rows, part):
    assert sum(OneHead(0, part).work(rows)) == pytest.approx(sum(rows))


@given(
    count=st.integers(1, 60),
    waiting=st.integers(1, 8),
    own=st.integers(0, 60),
)
def test_others_have_their_turns_in_order_and_between_own_ones(count, waiting, own):
    turns = [turn(number, count, waiting, own) for number in range(count)]

    assert turns == sorted(turns)
    assert min(turns) >= min(own, 1)
    assert max(turns) <= own


def test_a_turn_comes_when_hidden_states_are_there_and_before_they_are_needed():
    # 7 against 10: theirs are all on their way after a third of the step.
    assert [turn(number, 7, 8, 10) for number in range(7)] == [2, 3, 4, 5, 5, 6, 7]
    # 24 against 10, of which 8 may be on their way: one after the other.
    turns = [turn(number, 24, 8, 10) for number in range(24)]
    assert max(turns.count(each) for each in range(11)) <= 4
    assert turns[-1] >= 9


@pytest.mark.parametrize(
    ("speeds", "tokens", "waiting", "expected"),
    [
        ([4, 1], 16_384, 8, True),
        ([1, 4], 16_384, 8, True),
        # The slower one would have more hidden states than the gradient is worth.
        ([4, 1], 32_768, 8, False),
        ([20, 1], 131_072, 8, False),
        ([20, 1], 65_536, 8, True),
        # The lm_head of all would leave the fastest nothing to move.
        ([2, 1], 16_384, 8, False),
        ([4, 1], 16_384, 2, False),
        ([4], 16_384, 8, False),
    ],
)
def test_the_fastest_has_it_where_it_is_much_faster(speeds, tokens, waiting, expected):
    assert fastest_has_it(speeds, 0.54, tokens, 32_768, waiting) is expected

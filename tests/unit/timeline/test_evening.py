from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.timeline.deferral import part_batches
from yoked.timeline.evening import (
    GRAIN_TOKENS,
    MOST_OF_BATCH,
    Evening,
    Handover,
    even_out,
    helper_batch,
    source_batch,
)

SECONDS = st.floats(0.01, 10)
RANKS = st.lists(
    st.tuples(st.floats(0, 100), SECONDS, st.one_of(st.just(0.0), st.floats(0.01, 3))),
    min_size=1,
    max_size=5,
)
EVENING = Evening(batch_rows=2, deferred=8, row_tokens=512, head_part=0.7)


def by_speed(*row_s: float) -> Callable[[int, float], float]:
    return lambda rank, rows: rows * row_s[rank]


# --- how much


@given(RANKS)
def test_what_is_taken_from_some_is_given_to_others_and_nobody_ends_later(
    ranks: list[tuple[float, float, float]],
) -> None:
    took_s, row_s, most = (list(column) for column in zip(*ranks, strict=True))

    extra = even_out(took_s, row_s, most)

    after_s = [t + x * r for t, x, r in zip(took_s, extra, row_s, strict=True)]
    assert sum(extra) == pytest.approx(0, abs=1e-6)
    assert max(after_s) <= max(took_s) * (1 + 1e-9) + 1e-9
    assert all(x >= -each - 1e-9 for x, each in zip(extra, most, strict=True))
    assert all(x == 0 for x, each in zip(extra, most, strict=True) if each == 0)


def test_two_ranks_end_together() -> None:
    # 10 s and 8 s; a row takes 2 s and 1 s: two thirds of a row are handed over.
    assert even_out([10, 8], [2, 1], [1, 1]) == (pytest.approx(-2 / 3), pytest.approx(2 / 3))


def test_a_rank_gives_no_more_than_it_can_and_the_rest_is_shared_by_the_others() -> None:
    extra = even_out([20, 8, 10], [1, 1, 1], [1, 1, 1])

    assert extra == (-1, pytest.approx(1.5), pytest.approx(-0.5))


@given(st.lists(st.integers(0, 40), min_size=2, max_size=4), st.integers(1, 5), st.data())
def test_handovers_are_whole_grains_of_one_micro_batch_from_late_ranks_to_early_ones(
    rows: list[int], batch_rows: int, data: st.DataObject
) -> None:
    evening = Evening(batch_rows, data.draw(st.integers(1, 8)), 512, 0.7)
    row_s = data.draw(st.lists(SECONDS, min_size=len(rows), max_size=len(rows)))
    took_s = [count * each for count, each in zip(rows, row_s, strict=True)]

    found = evening.even(rows, took_s, row_s)

    for each in found:
        assert each.tokens > 0
        assert each.tokens % GRAIN_TOKENS == 0
        assert took_s[each.source] > took_s[each.helper]
        assert rows[each.source]
        assert rows[each.helper]
    for rank in range(len(rows)):
        given_away = sum(each.tokens for each in found if each.source == rank)
        assert given_away <= MOST_OF_BATCH * batch_rows * 512


# --- when


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 8))
def test_a_helper_comes_to_it_when_the_hidden_states_are_there_and_in_time(
    source_count: int, helper_count: int, deferred: int
) -> None:
    given_in = source_batch(source_count, deferred)
    taken_in = helper_batch(source_count, helper_count, deferred)

    parts = part_batches(source_count, deferred)
    assert 0 <= given_in < source_count
    assert 0 <= taken_in < helper_count
    # Of a step: the source's way through the layers is done, but where the helper cannot wait.
    sent_at = (given_in + 0.25) / source_count
    assert taken_in / helper_count >= sent_at or taken_in == helper_count - 1
    # The backward pass that needs the gradient: after the early ones, or after the last lm_head.
    needed_at = parts.early / source_count if given_in < parts.early else 1.0
    if helper_count >= 4 and (source_count >= 4 or given_in >= parts.early):
        assert (taken_in + 0.5) / helper_count <= needed_at + 1 / helper_count


def test_of_equal_ranks_the_first_micro_batch_is_given_and_comes_with_the_second() -> None:
    assert source_batch(8, 8) == 0
    assert helper_batch(8, 8, 8) == 1
    assert helper_batch(1, 1, 8) == 0


# --- within a step


def test_ranks_report_where_a_step_has_enough_micro_batches() -> None:
    assert EVENING.in_step((16, 16))
    assert EVENING.in_step((11, 21))
    assert not EVENING.in_step((10, 22))
    assert not EVENING.in_step((32, 0))
    assert not EVENING.in_step((32,))
    # Then a gradient would be waited for before the last micro-batch.
    assert not Evening(2, 1, 512, 0.54).in_step((16, 16))


@given(st.integers(12, 60), st.integers(12, 60), st.integers(2, 8))
def test_ranks_have_reported_before_anybody_hands_over_and_the_helper_comes_later(
    first: int, second: int, deferred: int
) -> None:
    evening, rows = Evening(2, deferred, 512, 0.54), (first, second)

    given_at = [evening.source_batch(rank, rows) for rank in (0, 1)]

    for rank, count in enumerate(rows):
        batches = -(-count // 2)
        assert evening.report_batch(count) < given_at[rank] == batches - 2
        assert evening.helper_batch(Handover(1 - rank, rank, 16), rows) == batches - 1
        # Its backward pass is one of those that wait for the last lm_head.
        assert given_at[rank] >= part_batches(batches, deferred).early


def test_of_what_is_uneven_in_the_middle_three_quarters_are_evened_out() -> None:
    # 5% apart: rows that are worth 16 * 5% / 2 are half of it, and 0.54 / 512 of one is a token.
    (found,) = EVENING.from_reports((16, 16), (1.0, 1.05))

    assert (found.source, found.helper) == (1, 0)
    assert found.tokens == pytest.approx(0.75 * 16 * 0.025 * 512 / 0.7, abs=GRAIN_TOKENS + 8)


def test_of_unlike_rows_it_is_the_end_that_counts() -> None:
    # In the middle the first has done 10 rows but for their backward passes, the second 6.
    evening = Evening(2, 10, 512, 0.54)
    assert evening.from_reports((20, 12), (10.0, 10.0)) == ()
    assert evening.from_reports((20, 12), (10.0, 10.8))[0].source == 1
    # With fewer that are deferred, the first has also done backward passes in that time.
    assert EVENING.from_reports((20, 12), (10.0, 10.0))[0].source == 1


def test_next_to_nothing_stays_uneven() -> None:
    assert EVENING.from_reports((16, 16), (1.0, 1.004)) == ()


# --- which rows


@given(
    st.lists(SECONDS, min_size=2, max_size=4),
    st.integers(1, 32),
    st.integers(1, 4),
)
def test_rows_evened_out_are_never_slower_than_whole_ones(
    row_s: list[float], total: int, batch_rows: int
) -> None:
    evening, took_s = Evening(batch_rows, 8, 512, 0.7), by_speed(*row_s)
    whole = [0] * len(row_s)
    for _ in range(total):
        whole[min(range(len(whole)), key=lambda rank: took_s(rank, whole[rank] + 1))] += 1

    best = evening.best_rows(whole, took_s)

    whole_s = max(took_s(rank, count) for rank, count in enumerate(whole))
    assert sum(best) == total
    assert min(best) >= 0
    assert evening.step_s(best, took_s) <= whole_s * (1 + 1e-9)


def test_a_host_that_is_too_slow_for_a_whole_row_can_do_most_of_one() -> None:
    took_s = by_speed(1.0, 4.5)

    best = EVENING.best_rows((4, 0), took_s)

    assert best == (3, 1)
    # At best 4 rows / (1 + 1 / 4.5) = 3.27; whole rows take 4.
    assert EVENING.step_s(best, took_s) == pytest.approx(3.27, rel=0.02)


def test_what_is_hardly_uneven_stays_so() -> None:
    assert EVENING.evened((16, 16), by_speed(1.0, 1.015)) == ()
    assert EVENING.evened((16, 16), by_speed(1.0, 1.06)) == (Handover(1, 0, 336),)


def test_where_the_only_micro_batch_waits_more_must_be_gained() -> None:
    assert EVENING.evened((2, 2), by_speed(1.0, 1.05)) == ()
    assert EVENING.evened((2, 2), by_speed(1.0, 1.1)) != ()


def test_a_slow_rank_with_long_micro_batches_helps_nobody():
    evening = Evening(batch_rows=2, deferred=8, row_tokens=512, head_part=0.54)
    row_s = (0.21, 0.95)

    def even(rows: tuple[int, int]) -> tuple[Handover, ...]:
        return evening.even(rows, [r * count for r, count in zip(row_s, rows, strict=True)], row_s)

    assert even((27, 5)) == ()
    (handover,) = even((25, 7))
    assert (handover.source, handover.helper) == (1, 0)
    assert dataclasses.replace(evening, divided=True).even((27, 5), (6.2, 4.75), row_s)

from __future__ import annotations

import pytest

from yoked.train.balance.speed_estimator import ChangePointMedian, RankStep, SpeedEstimator


def test_two_figures_in_a_row_begin_a_new_level_and_one_alone_does_not() -> None:
    level = ChangePointMedian()
    for figure in (1.0, 1.01, 0.99, 1.0, 3.0, 1.0, 1.02):
        level.add(figure)
    assert level.value == pytest.approx(1.0, abs=0.01)

    for figure in (2.0, 2.02):
        level.add(figure)

    assert (level.value, level.count) == (pytest.approx(2.01), 2)


def test_a_level_is_surer_the_more_it_has_seen() -> None:
    level, errors = ChangePointMedian(), []
    for figure in (1.0, 1.02, 0.98, 1.01, 0.99, 1.0):
        level.add(figure)
        errors.append(level.error)

    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


def estimator(*steps: tuple[float, ...], speeds: tuple[float, ...] = (1.0, 1.0)) -> SpeedEstimator:
    """After steps of (rows, seconds of a row) by rank, the optimizer 0.2 s."""
    found = SpeedEstimator(speeds)
    for rows, *row_s in steps:
        counts = (rows, 4 - rows)
        found.observe(
            [
                RankStep(int(count), count, 0.2 + count * each, 0.2)
                for count, each in zip(counts, row_s, strict=True)
            ]
        )
    return found


def test_a_steps_cost_is_told_apart_into_its_rows_and_the_rest() -> None:
    costs = estimator(*[(2, 1.0, 3.0)] * 6).costs()

    assert [cost.fixed_s for cost in costs] == pytest.approx([0.2, 0.2])
    assert [cost.row_s for cost in costs] == pytest.approx([1.0, 3.0])


def test_the_first_steps_are_not_counted() -> None:
    found = estimator((2, 90.0, 90.0), (2, 90.0, 90.0))
    assert not found.known

    found = estimator(*[(2, 90.0, 90.0)] * 2, *[(2, 1.0, 1.0)] * 2)

    assert found.known
    assert [cost.row_s for cost in found.costs()] == pytest.approx([1.0, 1.0])


def test_the_first_row_after_a_pause_warms_up_and_is_not_held_against_a_rank() -> None:
    found = estimator(*[(2, 1.0, 1.0)] * 6, *[(4, 1.0, 1.0)] * 6, (2, 1.0, 50.0))

    assert found.costs()[1].row_s == pytest.approx(1.0)


def test_a_rank_that_never_had_rows_is_taken_at_its_speed_before_the_first_step() -> None:
    known = estimator(*[(4, 1.0, 0.0)] * 6, speeds=(1.0, 0.5)).costs()
    unknown = estimator(*[(4, 1.0, 0.0)] * 6, speeds=(1.0, 0.0)).costs()

    assert known[1].row_s == pytest.approx(2.0)
    # Longer than a whole step of the other.
    assert unknown[1].row_s == pytest.approx(8.0)


def test_a_rank_without_rows_whose_optimizer_is_fast_again_is_fast_again() -> None:
    found = SpeedEstimator((1.0, 1.0))
    for _ in range(6):
        found.observe([RankStep(2, 2, 2.2, 0.2), RankStep(2, 2, 20.4, 0.4)])
    for _ in range(6):
        found.observe([RankStep(4, 4, 4.2, 0.2), RankStep(0, 0, 0.1, 0.1)])

    assert found.costs()[1].row_s == pytest.approx(10 * 0.1 / 0.4)

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.train.optim.schedule import Schedule, batch_lr_scale, scaled_weight_decay


def reference_lr(it: int, steps: int) -> float:
    fall = round(0.65 * steps)
    if it < 40:
        return (it + 1) / 40
    if it <= steps - fall:
        return 1.0
    progress = (steps - it) / fall
    return progress * 1.0 + (1 - progress) * 0.05


def reference_momentum(it: int, steps: int) -> float:
    fall = round(0.65 * steps)
    if it < 400:
        return 0.85 + (0.97 - 0.85) * it / 400
    if it >= steps - fall:
        return 0.97 + (0.90 - 0.97) * (it - (steps - fall)) / fall
    return 0.97


@given(steps=st.integers(1, 20_000), part=st.floats(0, 1, exclude_max=True))
def test_schedules_are_those_of_nanochat(steps, part):
    it, schedule = int(part * steps), Schedule(steps)

    assert schedule.learning_rate(it) == pytest.approx(reference_lr(it, steps))
    assert schedule.muon_momentum(it) == pytest.approx(reference_momentum(it, steps))
    assert schedule.weight_decay(it) == pytest.approx(0.5 * (1 + math.cos(math.pi * it / steps)))


def test_the_learning_rate_rises_stays_and_falls():
    schedule = Schedule(1000)

    assert [schedule.learning_rate(it) for it in (0, 19, 39, 40, 350)] == [1 / 40, 0.5, 1, 1, 1]
    assert schedule.learning_rate(675) == pytest.approx(0.525)
    assert schedule.learning_rate(1000) == pytest.approx(0.05)


def test_warm_up_comes_before_the_fall_in_a_short_run():
    # 20 steps fall over their last 13, but all of them are within the warm-up.
    assert [Schedule(20).learning_rate(it) for it in (0, 19)] == [1 / 40, 0.5]


def test_momentum_rises_and_falls():
    schedule = Schedule(10_000)

    momenta = [schedule.muon_momentum(it) for it in (0, 200, 400, 3499, 3500, 6750)]

    assert momenta == pytest.approx([0.85, 0.91, 0.97, 0.97, 0.97, 0.935])


def test_a_run_without_warm_up_or_fall_is_constant():
    schedule = Schedule(500, warmup_steps=0, warmdown_ratio=0.0)

    assert {schedule.learning_rate(it) for it in range(500)} == {1.0}
    assert schedule.muon_momentum(499) == 0.97


def test_a_run_that_falls_from_its_first_step_ends_at_the_final_fraction():
    schedule = Schedule(10, warmup_steps=0, warmdown_ratio=1.0, final_lr_frac=0.2)

    assert schedule.learning_rate(0) == 1.0
    assert schedule.learning_rate(5) == pytest.approx(0.6)
    assert schedule.learning_rate(9) == pytest.approx(0.28)


def test_rates_grow_with_the_square_root_of_the_batch():
    assert batch_lr_scale(524_288) == 1.0
    assert batch_lr_scale(131_072) == 0.5


def test_weight_decay_grows_with_the_batch_and_shrinks_with_the_model():
    assert scaled_weight_decay(0.28, 524_288, 100, 100) == pytest.approx(0.28)
    assert scaled_weight_decay(0.28, 131_072, 50, 100) == pytest.approx(0.28)
    assert scaled_weight_decay(0.28, 524_288, 200, 100) == pytest.approx(0.14)

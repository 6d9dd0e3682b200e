from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yoked.costmodel.assignment import LinearCost, assign_rows
from yoked.train.balance.balancer import Assignment, Reassignment, RowBalancer
from yoked.train.balance.speed_estimator import RankStep, SpeedEstimator


@dataclass
class World:
    """What steps cost by rank; speeds may change with the step."""

    row_s: Callable[[int], Sequence[float]]
    fixed_s: Callable[[int], Sequence[float]]

    def costs(self, step: int) -> list[LinearCost]:
        return [LinearCost(f, r) for f, r in zip(self.fixed_s(step), self.row_s(step), strict=True)]


@dataclass
class Simulated:
    """step_s: true seconds of each step, without noise; changes: with the step they hold from."""

    step_s: list[float]
    rows: list[tuple[int, ...]]
    changes: list[tuple[int, Reassignment]]


def simulate(
    world: World,
    start: Sequence[int],
    steps: int,
    *,
    noise: float = 0.02,
    seed: int = 0,
    head_part: float | None = None,
) -> Simulated:
    """Figures arrive one step late, as in a run; equal speeds are all that is known before."""
    dice, now = random.Random(seed), Assignment(tuple(start), tuple(start))
    speeds, balancer = SpeedEstimator([1.0] * len(start)), RowBalancer(now, head_part)
    found, late = Simulated([], [], []), list[RankStep]()
    for step in range(steps):
        costs, work = world.costs(step), now.work(head_part or 0.0)
        found.step_s.append(slowest_s(work, costs))
        found.rows.append(now.rows)
        change = None
        if late:
            speeds.observe(late)
            change = balancer.propose(speeds.costs() if speeds.known else None)
        late = [
            RankStep(
                count,
                each,
                cost.fixed_s + each * cost.row_s * max(0.1, dice.gauss(1, noise)),
                cost.fixed_s,
            )
            for cost, count, each in zip(costs, now.rows, work, strict=True)
        ]
        if change is not None:
            now = change.now
            found.changes.append((step + 1, change))
    return found


def slowest_s(work: Sequence[float], costs: Sequence[LinearCost]) -> float:
    return max(cost.step_s(each) for cost, each in zip(costs, work, strict=True))


def steady(*row_s: float, fixed: float = 0.3) -> World:
    """Speeds that do not change; the optimizer takes `fixed` rows' time."""
    return World(lambda step: row_s, lambda step: [fixed * each for each in row_s])


def changing(at: int, before: Sequence[float], after: Sequence[float]) -> World:
    """Other seconds per row from step `at` on, and as much slower optimizers."""
    return World(
        lambda step: before if step < at else after,
        lambda step: [0.3 * each for each in (before if step < at else after)],
    )


def best_s(world: World, step: int, rows: int) -> float:
    costs = world.costs(step)
    return slowest_s(assign_rows(rows, [cost.step_s for cost in costs]), costs)


@pytest.mark.parametrize("seed", range(6))
def test_equal_hosts_never_swap_rows_over_a_tenth_of_noise(seed: int) -> None:
    found = simulate(steady(1.0, 1.0), (16, 16), 500, noise=0.1, seed=seed)

    assert found.changes == []


@pytest.mark.parametrize("row_s", [(1.0, 4.0), (1.0, 2.0, 3.0), (5.0, 1.0), (1.0, 20.0)])
def test_unequal_hosts_have_the_best_rows_within_ten_steps(row_s: tuple[float, ...]) -> None:
    world = steady(*row_s)
    start = [32 // len(row_s)] * len(row_s)
    start[0] += 32 - sum(start)

    found = simulate(world, start, 40)

    assert all(took <= 1.06 * best_s(world, 0, 32) for took in found.step_s[10:])
    assert len(found.changes) <= 2


def recovered(slower: float, *, noise: float, seed: int = 0) -> float:
    """Part of the avoidable loss that is gone 20 steps after a host has slowed."""
    world = changing(40, (1.0, 1.0), (1.0, slower))
    found = simulate(world, (16, 16), 61, noise=noise, seed=seed)
    assert found.rows[40] == (16, 16)
    unbalanced_s, balanced_s = found.step_s[40], best_s(world, 40, 32)
    return (unbalanced_s - found.step_s[60]) / (unbalanced_s - balanced_s)


@given(slower=st.floats(1.7, 4.0))
@example(slower=2.078125)
@settings(max_examples=30, deadline=None)
def test_of_a_host_that_slows_ninety_percent_is_recovered_within_20_steps(slower: float) -> None:
    assert recovered(slower, noise=0.0) >= 0.9


def test_a_row_that_is_worth_it_moves_although_figures_vary() -> None:
    # (21, 11) rows are 89.8% recovered, (22, 10) all.
    assert recovered(2.078125, noise=0.05, seed=1) >= 0.9


@given(slower=st.floats(1.7, 4.0))
@example(slower=1.8)
@example(slower=1.875)
@settings(max_examples=10, deadline=None)
def test_with_noise_a_single_row_may_be_missed_in_few_runs(slower: float) -> None:
    found = sorted(recovered(slower, noise=0.05, seed=seed) for seed in range(30))

    # Where one row decides between 89 and 100%, noise of 5% may hide it for 20 steps.
    assert found[0] >= 0.8
    assert sum(part >= 0.9 for part in found) >= 25


def test_a_host_that_recovers_has_its_rows_again() -> None:
    row_s = {True: (1.0, 2.0), False: (1.0, 1.0)}
    world = World(lambda step: row_s[40 <= step < 90], lambda step: (0.3, 0.3))

    found = simulate(world, (16, 16), 130)

    assert found.rows[80] in ((21, 11), (22, 10))
    assert found.rows[-1] == (16, 16)
    assert [(change.why, change.rank) for _, change in found.changes] == [
        ("slower", 1),
        ("faster", 1),
    ]


def test_a_host_that_is_a_hundred_times_slower_has_no_rows_and_hardly_delays_the_others() -> None:
    found = simulate(steady(1.0, 100.0, fixed=0.001), (16, 16), 1500)

    assert found.rows[10] == found.rows[-1] == (32, 0)
    assert sum(found.step_s[10:]) < 1.01 * 1490 * 32


def test_an_idle_host_whose_optimizer_is_fast_again_has_rows_at_once() -> None:
    found = simulate(changing(60, (1.0, 100.0), (1.0, 1.0)), (16, 16), 80)

    assert found.rows[59] == (32, 0)
    assert found.rows[-1] == (16, 16)


def test_rows_do_not_swing_where_the_model_of_costs_is_wrong() -> None:
    """A second rank whose rows cost twice as much when it has more than 12."""
    now, changes = Assignment((16, 16), (16, 16)), 0
    speeds, balancer = SpeedEstimator((1.0, 1.0)), RowBalancer(now)
    for _ in range(300):
        row_s = (1.0, 2.0 if now.rows[1] > 12 else 1.0)
        speeds.observe(
            [RankStep(n, n, n * each, 0.0) for n, each in zip(now.rows, row_s, strict=True)]
        )
        change = balancer.propose(speeds.costs() if speeds.known else None)
        if change is not None:
            now, changes = change.now, changes + 1

    # Without doubled pauses there would be 70.
    assert changes <= 16


# --- a vocab-parallel lm_head


@pytest.mark.parametrize(("row_s", "start"), [((1.0, 1.12), (8, 8)), ((1.0, 1.3), (2, 2))])
def test_parts_of_the_lm_head_make_up_for_what_whole_rows_leave_uneven(
    row_s: tuple[float, ...], start: tuple[int, ...]
) -> None:
    world = steady(*row_s)
    whole = simulate(world, start, 40)

    found = simulate(world, start, 40, head_part=0.6)

    # As if rows could be parted at will: both ends at once.
    ideal_s = (sum(start) + sum(0.3 for _ in row_s)) / sum(1 / each for each in row_s)
    assert whole.step_s[-1] >= 1.025 * ideal_s
    assert found.step_s[-1] <= 1.015 * ideal_s


@pytest.mark.parametrize("seed", range(4))
def test_equal_hosts_keep_equal_parts_of_the_lm_head_over_noise(seed: int) -> None:
    found = simulate(steady(1.0, 1.0), (16, 16), 200, noise=0.03, seed=seed, head_part=0.6)

    assert found.changes == []


def test_a_rank_gives_no_more_of_the_lm_head_than_its_rows_have() -> None:
    found = simulate(steady(1.0, 4.5, fixed=0.0), (2, 2), 60, head_part=0.5)

    (_, change), *_ = found.changes
    assert min(change.now.lm_head) >= 0
    assert sum(change.now.lm_head) == pytest.approx(4)

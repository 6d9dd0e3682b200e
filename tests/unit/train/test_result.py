from __future__ import annotations

import json
import pickle
import random
from statistics import median

import pytest

from yoked.train.result import WINDOW_STEPS, RunResult, RunStats, host_table
from yoked.train.trainer import StepStats


def stats(nats: float, tokens: int, compute_s: float = 1.0, sent: int = 0) -> StepStats:
    return StepStats(nats, tokens, compute_s, comm_s=0.1, wait_s=0.2, bytes_sent=sent)


def test_the_loss_is_that_of_the_last_steps_tokens_whoever_had_them():
    run = RunStats()
    run.add(1.0, [stats(900, 100), stats(0, 0)])
    run.add(1.0, [stats(300, 100), stats(60, 20)])

    assert run.loss == pytest.approx(3.0)


def test_the_speed_is_that_of_the_median_step_after_the_first():
    run = RunStats()
    for dt_s in (60.0, 2.0, 1.0, 9.0):
        run.add(dt_s, [stats(1, 300), stats(1, 100)])

    assert run.first_step_s == 60.0
    assert run.tokens_per_second == pytest.approx(200.0)


def test_a_single_step_counts_though_it_is_the_first():
    run = RunStats()
    run.add(4.0, [stats(1, 400)])

    assert run.tokens_per_second == 100.0
    assert run.median_of(0, "compute_s") == 1.0


def test_bytes_are_those_of_the_rank_that_sends_most():
    run = RunStats()
    for sent in (5, 70, 6):
        run.add(1.0, [stats(1, 1, sent=sent), stats(1, 1, sent=2 * sent)])

    assert run.bytes_sent_per_step == 12


def test_before_the_first_step_nothing_is_known():
    run = RunStats()

    assert (run.loss, run.first_step_s, run.tokens_per_second) == (None, None, None)
    assert run.bytes_sent_per_step == 0
    assert run.median_of(0, "wait_s") is None


def test_medians_are_exact_for_a_run_that_fits_the_window():
    dice = random.Random(5)
    run = RunStats()
    steps = [
        (dice.random(), [stats(1, 1, dice.random(), dice.randrange(10**9)) for _ in range(3)])
        for _ in range(WINDOW_STEPS + 1)
    ]
    for dt_s, by_rank in steps:
        run.add(dt_s, by_rank)

    assert run.tokens_per_second == 3 / median(dt_s for dt_s, _ in steps[1:])
    assert run.median_of(2, "compute_s") == median(ranks[2].compute_s for _, ranks in steps[1:])
    assert run.bytes_sent_per_step == int(
        median(max(each.bytes_sent for each in ranks) for _, ranks in steps)
    )


def test_a_longer_run_reports_its_last_steps_and_its_first():
    run = RunStats()
    for dt_s in (60.0, *[1.0] * WINDOW_STEPS, *[2.0] * WINDOW_STEPS):
        run.add(dt_s, [stats(1, 100)])

    assert run.first_step_s == 60.0
    assert run.tokens_per_second == 50.0


def test_a_run_takes_no_more_memory_however_long_it_is():
    run = RunStats()
    for _ in range(WINDOW_STEPS + 1):
        run.add(1.0, [stats(1, 100)] * 4)
    full_bytes = len(pickle.dumps(run))

    for _ in range(2 * WINDOW_STEPS):
        run.add(1.0, [stats(1, 100)] * 4)

    assert len(pickle.dumps(run)) == full_bytes


def describe(rank: int, name: str) -> dict:
    return {
        "rank": rank,
        "name": name,
        "device": "cpu",
        "device_name": "a CPU",
        "dtype": "float32",
        "threads": 4,
    }


def test_a_host_has_its_ranks_together_and_the_time_of_its_slowest():
    run = RunStats()
    for _ in range(3):
        run.add(1.0, [stats(1, 1, 0.5), stats(1, 1, 0.9), stats(1, 1, 0.7)])
    described = [describe(0, "desk"), describe(1, "laptop"), describe(2, "desk")]

    table = host_table(described, [1.0, 2.0, 1.0], run)

    assert [host["name"] for host in table] == ["desk", "laptop"]
    assert [host["ranks"] for host in table] == [2, 1]
    assert [host["share"] for host in table] == [0.5, 0.5]
    assert [host["compute_s"] for host in table] == [0.7, 0.9]
    assert [host["wait_s"] for host in table] == [0.2, 0.2]


def test_a_host_of_a_planned_run_has_no_times():
    table = host_table([describe(0, "desk")], [1.0], RunStats())

    assert table[0]["compute_s"] is table[0]["comm_s"] is table[0]["wait_s"] is None


def test_a_result_is_plain_json_with_the_promised_keys():
    result = RunResult(
        run="a",
        dir="runs/a",
        state="finished",
        params={},
        hosts=[],
        choices=[],
        model={},
        data={},
        horizon={},
        outlook={},
    )

    content = json.loads(json.dumps(result.to_dict()))

    promised = (
        "run dir steps tokens loss val_bpb tokens_per_second first_step_s bytes_sent_per_step "
        "params hosts"
    )
    assert set(promised.split()) <= set(content)

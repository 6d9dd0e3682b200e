"""Where the ranks' time goes in a run that gets on, and who sets its pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.diagnosis.made_up import (
    IN_PROGRAM,
    PERIOD_S,
    Told,
    in_collective,
    link,
    rank,
    recorded,
)

from yoked.diagnosis.gate import Shares, busy_ranks, shares_of
from yoked.diagnosis.vitals import Frame, Machine, Vitals

LOADS = (Frame("/v/site-packages/torch/utils/data/dataloader.py", 733, "__next__"), IN_PROGRAM)


def after(
    *ranks: dict[str, Any], looks: int = 60, steps_per_s: float = 2.0, told: Told | None = None
) -> Shares | None:
    """A run whose ranks, one a host, are so: computes, delayed, cores, gpu, loads, counts."""
    told = told or Told(len(ranks))
    for look in range(looks):
        steps = look * PERIOD_S * steps_per_s
        seen = []
        for number, each in enumerate(ranks):
            ran_s = look * PERIOD_S * each.get("computes", 0.0)
            seen.append(
                rank(
                    number,
                    cpu_s=look * PERIOD_S * each.get("cores", each.get("computes", 0.0)),
                    main_cpu_s=ran_s if each.get("counts", True) else None,
                    main_delayed_s=look * PERIOD_S * each.get("delayed", 0.0),
                    gpu=each.get("gpu", False),
                    recorded=recorded(
                        steps=int(steps),
                        age_s=0.0,
                        stepped_age_s=steps % 1 / (steps_per_s or 1.0),
                        step_s=(1 / (steps_per_s or 1.0),) * min(32, max(0, int(steps) - 1)),
                        step_cpu_s=(0.1,) * min(32, max(0, int(steps) - 1)),
                        frames=LOADS if each.get("loads") else (IN_PROGRAM,),
                    ),
                )
            )
        told.look(*[Vitals(0, 0, (each,), links=(link(0),)) for each in seen])
    return shares_of(told.history)


def test_the_rank_that_is_busy_while_the_others_wait_gates_the_run() -> None:
    found = after({"computes": 0.4, "cores": 3.2}, {"computes": 0.9, "delayed": 0.05})

    assert found is not None
    assert (found.gate, found.gating) == ("rank", (1,))
    assert found.ahead == pytest.approx(0.55, abs=0.01)
    assert found.step_s == pytest.approx(0.5, abs=0.01)
    assert found.ranks[0].waits == pytest.approx(0.6, abs=0.01)
    assert found.ranks[1].waits_for_core == pytest.approx(0.05, abs=0.01)


def test_what_holds_the_gating_host_back_is_named_though_it_was_never_better() -> None:
    told = Told()
    after({"computes": 0.4}, {"computes": 0.9}, told=told)
    for node in (0, 1):
        at_s, vitals = told.history.hosts[node].looks[-1]
        slow = Machine(limited=0.0, clock_hz=1.2e9, most_hz=4.1e9, on_battery=True)
        told.history.hosts[node].looks[-1] = (at_s, replace(vitals, machine=slow))
    found = shares_of(told.history)

    assert found is not None
    assert found.why == "it runs on its battery; its clock is at 1.2 of 4.1 GHz"
    assert [line.partition("host1")[1] for line in found.fix] == ["host1", "host1"]


def test_two_ranks_of_one_slow_host_gate_the_run_together() -> None:
    found = after({"computes": 0.3}, {"computes": 0.95}, {"computes": 0.93})

    assert found is not None
    assert (found.gate, found.gating) == ("rank", (1, 2))


def test_equal_ranks_wait_for_nobody() -> None:
    found = after({"computes": 0.8}, {"computes": 0.75})

    assert found is not None
    assert (found.gate, found.gating) == ("nobody", ())


def test_ranks_that_all_wait_wait_for_the_network() -> None:
    found = after({"computes": 0.1}, {"computes": 0.3})

    assert found is not None
    assert found.gate == "network"


def test_ranks_that_wait_for_data_are_told_apart() -> None:
    found = after({"computes": 0.1}, {"computes": 0.2, "loads": True})

    assert found is not None
    assert (found.gate, found.gating) == ("data", (1,))


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param({"computes": 1.0, "gpu": True}, id="a GPU computes"),
        pytest.param({"computes": 0.9, "counts": False}, id="the kernel does not count"),
        pytest.param({"computes": 0.0, "cores": 4.0}, id="threads beside the main one compute"),
    ],
)
def test_what_cannot_be_known_is_not_told(unknown: dict[str, Any]) -> None:
    found = after({"computes": 0.9}, unknown)

    assert found is not None
    assert (found.gate, found.ahead) == (None, None)
    assert found.ranks[0].computes == pytest.approx(0.9, abs=0.01)
    assert (found.ranks[1].computes, found.ranks[1].waits) == (None, None)


def test_a_program_that_tells_of_no_steps_is_measured_by_the_time() -> None:
    found = after({"computes": 0.4}, {"computes": 0.9}, steps_per_s=0.0)

    assert found is not None
    assert (found.gate, found.gating, found.step_s) == ("rank", (1,), None)


def test_nothing_is_told_of_a_run_that_has_just_begun() -> None:
    assert after({"computes": 0.4}, {"computes": 0.9}, looks=10) is None


def test_since_when_a_rank_gates_the_run_is_kept() -> None:
    told = Told()
    after({"computes": 0.4}, {"computes": 0.9}, told=told)
    found = after({"computes": 0.4}, {"computes": 0.9}, told=told, looks=120)

    assert found is not None
    assert found.since_s == pytest.approx(20 + 60)


def test_one_rank_alone_gates_nobody() -> None:
    found = after({"computes": 0.9})

    assert found is not None
    assert (found.gate, len(found.ranks)) == (None, 1)


def test_ranks_at_something_else_than_training_are_told_with_their_line() -> None:
    told = Told(2).steps()
    for _ in range(10):
        saves = rank(1, recorded=recorded(phase="saving", frames=(IN_PROGRAM,)))
        told.look(Vitals(0, 0, (rank(0),)), Vitals(0, 0, (saves,)))

    (found,) = busy_ranks(told.history)

    assert (found.rank, found.doing, found.for_s) == (1, "saving", pytest.approx(4.5))
    assert found.at == "/home/me/train.py:41 in main"


def test_ranks_of_a_run_in_which_no_step_ends_are_told() -> None:
    told = Told(2).steps()
    for look in range(20):
        told.look(
            Vitals(0, 0, (rank(0, recorded=in_collective(77, look * PERIOD_S)),)),
            Vitals(0, 0, (rank(1, cpu_s=3.6 + look * PERIOD_S),)),
        )
        found = [(each.rank, each.doing) for each in busy_ranks(told.history)]
        # A step takes 0.3 s.
        assert found == [] if (look + 1) * PERIOD_S < 5.5 else True

    assert found == [(0, "waiting for others"), (1, "at work")]

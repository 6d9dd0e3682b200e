from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.agent import processors
from yoked.errors import UsageError
from yoked.train.decisions.threads import Cores, plan_threads, read_cores


def test_of_a_hybrid_cpu_one_thread_of_each_performance_core_is_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    siblings = ("0-1", "0-1", "2-3", "2-3", "4", "5")
    for cpu, threads_of_core in enumerate(siblings):
        folder = tmp_path / f"cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/thread_siblings_list").write_text(threads_of_core)
        (folder / "cpu_capacity").write_text("1024" if cpu < 4 else "446")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4}, raising=False)

    cores = read_cores(tmp_path)

    assert (cores.fast, cores.allowed, cores.hybrid) == ((0, 2), (0, 1, 2, 3, 4), True)


def test_a_macs_efficiency_cores_get_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = dict.fromkeys(processors.MAC_NAMES, "")
    told |= {"hw.physicalcpu": "8", "hw.logicalcpu": "8", "hw.perflevel0.physicalcpu": "4"}
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(processors, "sysctl", told.__getitem__)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    cores = read_cores(tmp_path)

    assert (len(cores.fast), len(cores.allowed), cores.hybrid) == (4, 8, True)


@given(fast=st.integers(1, 40), ranks=st.integers(1, 12))
def test_ranks_divide_the_fast_cores_without_sharing_one(fast, ranks):
    cores = Cores(tuple(range(fast)), tuple(range(2 * fast)), hybrid=True)

    plans = [plan_threads(cores, rank, ranks, None, chosen_outside=None) for rank in range(ranks)]

    assert all(plan.threads == len(plan.cores or ()) >= 1 for plan in plans)
    used = [core for plan in plans for core in plan.cores or ()]
    assert set(used) == set(range(fast))
    if ranks <= fast:
        assert len(used) == fast
        assert max(p.threads for p in plans) - min(p.threads for p in plans) <= 1


def test_ranks_are_pinned_on_hybrid_cpus_only():
    uniform = Cores((0, 1), (0, 1, 2, 3), hybrid=False)
    hybrid = Cores((0, 2), tuple(range(8)), hybrid=True)

    plan = plan_threads(uniform, 0, 1, None, chosen_outside=None)
    pinned = plan_threads(hybrid, 0, 1, None, chosen_outside=None)

    assert (plan.threads, plan.cores, plan.reason) == (2, None, "2 physical cores")
    assert (pinned.threads, pinned.cores, pinned.reason) == (2, (0, 2), "2 performance cores")


def test_what_was_asked_for_wins_over_the_environment_and_the_cores(snapshot: SnapshotAssertion):
    cores = Cores((0, 1), (0, 1, 2, 3), hybrid=True)

    asked = plan_threads(cores, 0, 2, 4, chosen_outside=3)
    outside = plan_threads(cores, 0, 2, None, chosen_outside=3)

    assert (asked.threads, asked.cores, asked.reason) == snapshot
    assert (outside.threads, outside.cores, outside.reason) == (3, None, "OMP_NUM_THREADS")


def test_more_threads_than_cpus_are_refused_with_the_number_there_is(snapshot: SnapshotAssertion):
    with pytest.raises(UsageError) as caught:
        plan_threads(Cores((0, 1), (0, 1, 2, 3), False), 0, 1, 5, chosen_outside=None)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("quota", "ranks", "threads"),
    [(1.5, 1, 2), (1.5, 2, 1), (0.5, 1, 1), (3.0, 2, 2), (64.0, 1, 8)],
)
def test_no_more_threads_than_the_control_group_has_time_for(quota, ranks, threads):
    cores = Cores(tuple(range(8)), tuple(range(16)), hybrid=False, quota=quota)

    plan = plan_threads(cores, 0, ranks, None, chosen_outside=None)

    assert plan.threads == min(threads, 8 // ranks)
    assert ("allows the time of" in plan.reason) == (quota < 8)

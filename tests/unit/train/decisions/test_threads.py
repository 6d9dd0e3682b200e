from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.errors import UsageError
from yoked.train.decisions.threads import Cores, plan_threads, read_cores

GHZ = 1_000_000


def make_cpu(
    root: Path, cpu: int, siblings: str, *, max_khz: int | None = None, capacity: int | None = None
) -> None:
    folder = root / f"cpu{cpu}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/thread_siblings_list").write_text(siblings + "\n")
    if max_khz is not None:
        (folder / "cpufreq").mkdir()
        (folder / "cpufreq/cpuinfo_max_freq").write_text(f"{max_khz}\n")
    if capacity is not None:
        (folder / "cpu_capacity").write_text(f"{capacity}\n")


def make_hybrid_pc(root: Path) -> None:
    """Two performance cores of two threads each, four efficiency cores."""
    for cpu in range(4):
        make_cpu(root, cpu, "0-1" if cpu < 2 else "2-3", max_khz=int(5.8 * GHZ))
    for cpu in range(4, 8):
        make_cpu(root, cpu, str(cpu), max_khz=int(4.3 * GHZ))


def test_one_thread_of_each_physical_core_counts(tmp_path: Path):
    for cpu in range(4):
        make_cpu(tmp_path, cpu, "0,2" if cpu % 2 == 0 else "1,3", max_khz=4 * GHZ)

    assert read_cores(tmp_path, (0, 1, 2, 3)) == Cores((0, 1), (0, 1, 2, 3), hybrid=False)


def test_efficiency_cores_are_left_out(tmp_path: Path):
    make_hybrid_pc(tmp_path)

    assert read_cores(tmp_path, tuple(range(8))) == Cores((0, 2), tuple(range(8)), hybrid=True)


def test_boost_bins_of_equal_cores_are_not_taken_for_efficiency_cores(tmp_path: Path):
    for cpu, khz in enumerate((5_700_000, 5_500_000, 5_200_000)):
        make_cpu(tmp_path, cpu, str(cpu), max_khz=khz)

    assert read_cores(tmp_path, (0, 1, 2)) == Cores((0, 1, 2), (0, 1, 2), hybrid=False)


def test_arm_cores_are_told_apart_by_capacity_before_frequency(tmp_path: Path):
    for cpu, capacity in enumerate((446, 446, 1024, 1024)):
        make_cpu(tmp_path, cpu, str(cpu), max_khz=2 * GHZ, capacity=capacity)

    assert read_cores(tmp_path, (0, 1, 2, 3)).fast == (2, 3)


def test_without_sysfs_every_allowed_cpu_is_a_fast_core(tmp_path: Path):
    cores = read_cores(tmp_path / "absent", (0, 1, 5))

    assert cores == Cores((0, 1, 5), (0, 1, 5), hybrid=False)


def test_a_core_whose_speed_is_unknown_is_not_taken_for_a_slow_one(tmp_path: Path):
    make_cpu(tmp_path, 0, "0", max_khz=4 * GHZ)
    make_cpu(tmp_path, 1, "1")

    assert read_cores(tmp_path, (0, 1)) == Cores((0, 1), (0, 1), hybrid=False)


def test_capacities_and_frequencies_are_not_compared_with_each_other(tmp_path: Path):
    make_cpu(tmp_path, 0, "0", max_khz=4 * GHZ, capacity=1024)
    make_cpu(tmp_path, 1, "1", max_khz=4 * GHZ)

    assert read_cores(tmp_path, (0, 1)).fast == (0, 1)


def test_only_cpus_of_the_affinity_are_used(tmp_path: Path):
    make_hybrid_pc(tmp_path)

    assert read_cores(tmp_path, (1, 3, 4)).fast == (1, 3)
    assert read_cores(tmp_path, (5, 6)) == Cores((5, 6), (5, 6), hybrid=False)


def test_the_affinity_of_the_process_is_the_default(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2}, raising=False)

    assert read_cores(tmp_path).allowed == (2, 5)


def test_a_system_without_affinity_has_all_its_cpus(tmp_path: Path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 3)

    assert read_cores(tmp_path).allowed == (0, 1, 2)


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


def test_what_was_asked_for_wins_over_the_environment_and_the_cores():
    cores = Cores((0, 1), (0, 1, 2, 3), hybrid=True)

    asked = plan_threads(cores, 0, 2, 4, chosen_outside=3)
    outside = plan_threads(cores, 0, 2, None, chosen_outside=3)

    assert (asked.threads, asked.cores, asked.reason) == (4, None, "asked for with --threads")
    assert (outside.threads, outside.cores, outside.reason) == (3, None, "OMP_NUM_THREADS")


def test_more_threads_than_cpus_are_refused_with_the_number_there_is():
    with pytest.raises(UsageError, match=r"--threads 5, .* may use 4 CPUs\nfix: --threads 4"):
        plan_threads(Cores((0, 1), (0, 1, 2, 3), False), 0, 1, 5, chosen_outside=None)


@pytest.mark.parametrize(
    ("quota", "ranks", "threads"),
    [(1.5, 1, 2), (1.5, 2, 1), (0.5, 1, 1), (3.0, 2, 2), (64.0, 1, 8)],
)
def test_no_more_threads_than_the_control_group_has_time_for(quota, ranks, threads):
    cores = Cores(tuple(range(8)), tuple(range(16)), hybrid=False, quota=quota)

    plan = plan_threads(cores, 0, ranks, None, chosen_outside=None)

    assert plan.threads == min(threads, 8 // ranks)
    assert ("allows the time of" in plan.reason) == (quota < 8)

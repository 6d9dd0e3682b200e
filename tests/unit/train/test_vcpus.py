"""How a rank waits: when its processors are kept awake, and that nothing of it stays."""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import chain
from pathlib import Path

import pytest

from yoked.train import kernels, vcpus
from yoked.train.vcpus import choose_waiting, kept_awake

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")


@pytest.fixture
def compiled() -> None:
    if not kernels.kernels().available:
        pytest.skip(kernels.kernels().reason)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernels, "cpu_identity", lambda: "x86_64 fpu hypervisor avx2")
    monkeypatch.setattr(vcpus, "cpu_quota", lambda proc, cgroups: None)
    return monkeypatch


def test_only_a_virtual_machine_that_computes_on_its_own_processors_is_kept_awake(
    host: pytest.MonkeyPatch, compiled: None
) -> None:
    assert choose_waiting("auto", ranks=2, on_cpu=True).value == "busy"
    assert choose_waiting("auto", ranks=2, on_cpu=False).value == "asleep"

    assert choose_waiting("auto", ranks=1, on_cpu=True).value == "asleep"

    host.setattr(vcpus, "cpu_quota", lambda proc, cgroups: 0.5)
    assert "control group" in choose_waiting("auto", ranks=2, on_cpu=True).reason

    host.setattr(kernels, "cpu_identity", lambda: "x86_64 fpu avx2")
    assert choose_waiting("auto", ranks=2, on_cpu=True).value == "asleep"


def test_what_is_asked_for_counts_where_it_can_be_had(
    host: pytest.MonkeyPatch, compiled: None
) -> None:
    assert choose_waiting("asleep", ranks=2, on_cpu=True).value == "asleep"
    host.setattr(kernels, "cpu_identity", lambda: "x86_64")
    assert choose_waiting("busy", ranks=2, on_cpu=False).value == "busy"

    kernels.switch_off("in this test")
    try:
        assert choose_waiting("busy", ranks=2, on_cpu=True).value == "asleep"
    finally:
        kernels.switch_on()


def policies() -> list[int]:
    """Scheduling policy of each thread that keeps a processor awake; proc(5), field 41 of stat."""
    ours = [each for each in threading.enumerate() if each.name == "awake"]
    fields = [
        Path(f"/proc/self/task/{each.native_id}/stat").read_text().rpartition(")")[2].split()
        for each in ours
    ]
    return [int(field[38]) for field in fields]


def used_s() -> float:
    """Processor time of the threads that keep processors awake; proc(5), fields 14 and 15."""
    ours = [each for each in threading.enumerate() if each.name == "awake"]
    stats = [Path(f"/proc/self/task/{each.native_id}/stat").read_text() for each in ours]
    ticks = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
    return sum(map(int, chain(*ticks))) / os.sysconf("SC_CLK_TCK")


def test_it_runs_while_a_rank_waits_and_sleeps_while_it_computes(compiled: None) -> None:
    with kept_awake(1) as around:
        until_s = time.monotonic() + 60
        while used_s() < 0.1 and time.monotonic() < until_s:
            with around():
                time.sleep(0.05)
        waited_s = used_s()
        assert waited_s >= 0.1

        time.sleep(0.5)
        assert used_s() - waited_s < 0.1


def test_it_runs_behind_all_else_and_then_it_is_gone(compiled: None) -> None:
    with kept_awake(2):
        until_s = time.monotonic() + 10
        while policies() != [5, 5] and time.monotonic() < until_s:
            time.sleep(0.01)
        # SCHED_IDLE
        assert policies() == [5, 5]

    assert policies() == []


def test_none_is_started_where_none_is_wanted() -> None:
    before = threading.active_count()
    with kept_awake(0) as around, around():
        assert threading.active_count() == before

"""What the doctor sees of real hosts, well and ill; and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from yoked.doctor.examine import look
from yoked.fleet.file import load_fleet
from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.process import until
from yoked.lab.pytest_plugin import new_lab
from yoked.records.examination import Examination, Need

NAMES = ("alpha", "beta")
DEADLINE_S = 30.0
# In a process of its own, so that it can be killed.
LOOK = """
import sys
from pathlib import Path
from yoked.doctor.examine import look
from yoked.fleet.file import load_fleet
from yoked.records.examination import Need
say = lambda line: print(line, flush=True)
look(load_fleet(Path(sys.argv[1])), Need(), quick=False, bandwidth=False, say=say)
"""


@pytest.fixture(scope="module")
def lab_of_two() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def sick_lab(lab_of_two: Lab) -> Iterator[Lab]:
    """A lab that gets well again."""
    yield lab_of_two
    faults.heal(lab_of_two)


def examine(lab: Lab, *, quick: bool = False) -> Examination:
    fleet = load_fleet(lab.fleet_file)
    return look(fleet, Need(), quick=quick, bandwidth=False, say=lambda line: None)


def ours(lab: Lab) -> list[str]:
    """What runs on the hosts besides what belongs to them."""
    return [
        f"{name}: {process.program} {process.pid}"
        for name in NAMES
        for process in lab.host(name).processes()
        if "python" in process.program
    ]


def only_ssh_listens(lab: Lab) -> bool:
    lines = [
        line
        for name in NAMES
        for line in lab.host(name).tool(["ss", "-H", "-t", "-l", "-n"]).stdout.splitlines()
    ]
    return {line.split()[3].rpartition(":")[2] for line in lines} == {"22"}


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something becomes true within a moment."""
    return until(holds, DEADLINE_S, 0.05)


def test_healthy_hosts_come_through_to_each_other_and_make_a_world(lab_of_two: Lab) -> None:
    before = ours(lab_of_two)

    seen = examine(lab_of_two)

    assert [host.up for host in seen.hosts] == [True, True]
    # Of them a burst of data, and a connection that is quiet for a while, each way.
    assert len(seen.dials) == 12
    assert all(each.ok for each in seen.dials), seen.dials
    assert seen.world is not None
    assert seen.world.ok, seen.world
    for host in seen.hosts:
        assert host.health["untold"] == {}
        assert host.health["names"]["hostname"] == host.name
        assert host.torch is not None
        assert host.torch["gloo"] is True
        (way,) = host.health["routes"].values()
        assert (way["interface"], way["error"]) == ("eth0", None)
        assert way["neighbour"] in ("reachable", "stale", "delay", "probe")
        assert host.clock_offset_s is not None
        assert host.clock_error_s is not None
        assert abs(host.clock_offset_s) <= host.clock_error_s + 0.1
    assert soon(lambda: ours(lab_of_two) == before)
    assert only_ssh_listens(lab_of_two)


def test_the_quick_form_sees_the_same_of_healthy_hosts(lab_of_two: Lab) -> None:
    seen = examine(lab_of_two, quick=True)

    assert seen.quick
    assert len(seen.dials) == 4
    assert all(each.ok for each in seen.dials), seen.dials
    assert [host.torch and host.torch["error"] for host in seen.hosts] == [None, None]


def test_a_firewall_shows_in_one_direction_and_at_ports_that_the_kernel_picks(
    sick_lab: Lab,
) -> None:
    faults.apply(sick_lab, "firewall", ["alpha"])

    seen = examine(sick_lab)

    to_alpha = seen.between("beta", "alpha", ("ephemeral", "bulk"))
    assert {(each.ok, each.error) for each in to_alpha} == {(False, "ETIMEDOUT")}
    assert all(each.ok for each in seen.between("alpha", "beta", ("ephemeral", "bulk")))
    assert [each.ok for each in seen.between("beta", "alpha", ("rendezvous",))] == [True]
    assert seen.world is not None
    assert seen.world.ok is None


@pytest.mark.slow
def test_a_way_for_small_packets_alone_shows_in_bulk(sick_lab: Lab) -> None:
    faults.apply(sick_lab, "mtu", ["beta", "1400"])

    seen = examine(sick_lab)

    for source, target in (NAMES, NAMES[::-1]):
        assert all(each.ok for each in seen.between(source, target))
        (bulk,) = seen.between(source, target, ("bulk",))
        assert (bulk.ok, bulk.bulk_bytes) == (False, 0)
        assert bulk.answered_by == target


@pytest.mark.slow
def test_a_host_that_is_off_leaves_the_rest_to_be_seen(sick_lab: Lab) -> None:
    faults.apply(sick_lab, "cut", ["beta"])

    seen = examine(sick_lab)

    failure = seen.host("beta").failure
    assert failure is not None
    assert failure.kind == "timeout"
    assert seen.host("alpha").health["untold"] == {}


def test_nothing_stays_on_the_hosts_when_the_controller_is_killed(lab_of_two: Lab) -> None:
    before = ours(lab_of_two)
    process = subprocess.Popen(
        [sys.executable, "-c", LOOK, str(lab_of_two.fleet_file)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    there = soon(lambda: ours(lab_of_two) != before)

    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert "2 hosts answered" in said
    assert there
    assert soon(lambda: ours(lab_of_two) == before), ours(lab_of_two)
    assert soon(lambda: only_ssh_listens(lab_of_two))

"""Links with a delay on a kernel without netem: the relay's work, as hosts see it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.core.proc import all_processes
from yoked.lab import faults
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import LabUp, new_lab
from yoked.lab.topology import Topology
from yoked.lab.topology_load import load

DELAY_S, JITTER_S = 0.020, 0.005
# The relay is one of many processes on a machine that may be busy; this is far from no bound.
LATE_S = 0.060
SLOW = """
description = "one link of two is slow"
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
subnet6 = "fd00:77::/64"
[[host]]
name = "desktop"
[[host]]
name = "laptop"
delay = "20 ms"
jitter = "5 ms"
"""
# Takes what comes until its end, and answers with what it was.
SERVE = """
import hashlib, socket
listener = socket.create_server(("0.0.0.0", 8000))
print("ready", flush=True)
connection, _ = listener.accept()
with connection, connection.makefile("rb") as file:
    connection.sendall(hashlib.file_digest(file, "sha256").hexdigest().encode())
"""
SEND = """
import random, socket, sys
connection = socket.create_connection((sys.argv[1], 8000), 30)
connection.sendall(random.Random(int(sys.argv[2])).randbytes(int(sys.argv[3])))
connection.shutdown(socket.SHUT_WR)
print(connection.makefile().read())
"""
BULK_BYTES = 20_000_000


def slow_topology(folder: Path) -> Topology:
    path = folder / "slow.toml"
    path.write_text(SLOW)
    return load(str(path))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with new_lab(slow_topology(tmp_path_factory.mktemp("topology"))) as lab:
        if lab.features.netem:
            pytest.skip("the kernel has netem, which delays links by itself")
        yield lab


def quickest_s(host: LabHost, target: str, count: int = 20) -> float:
    """The shortest round trip of some pings."""
    done = host.run(["ping", "-c", str(count), "-i", "0.05", "-W", "5", target])
    times_ms = [float(found) for found in re.findall(r"time=([\d.]+) ms", done.stdout)]
    assert len(times_ms) == count, done.stdout
    return min(times_ms) / 1e3


def is_delayed(trip_s: float) -> bool:
    """Each way takes at least the delay less the jitter; and the quickest not much longer."""
    return 2 * (DELAY_S - JITTER_S) <= trip_s <= 2 * (DELAY_S + JITTER_S) + LATE_S


def has_carrier(host: LabHost) -> bool:
    return "LOWER_UP" in host.tool(["ip", "link", "show", "dev", "eth0"]).stdout


def until_carrier(host: LabHost, wanted: bool) -> bool:
    """Each look takes milliseconds; that many are seconds."""
    return any(has_carrier(host) == wanted for _ in range(500))


def relays(lab_id: str) -> list[int]:
    """The processes of a lab that relay, by the machine's numbers."""
    return [
        process.pid
        for process in all_processes()
        if process.environment().get("YOKED_LAB") == lab_id and "relay.main()" in process.command()
    ]


@pytest.mark.parametrize("target", ["192.168.77.1", "fd00:77::1"])
def test_a_round_trip_takes_the_delay_in_each_direction(slow: Lab, target: str) -> None:
    trip_s = quickest_s(slow.host("laptop"), target)

    assert is_delayed(trip_s), trip_s


def test_the_note_tells_who_delays_and_which_link(slow: Lab) -> None:
    (note,) = [note for note in slow.notes if "relay" in note]

    assert "laptop (20.0 ms, jitter 5.00 ms)" in note
    assert "sch_netem" in note


def test_a_frame_arrives_once(slow: Lab) -> None:
    done = slow.host("desktop").run(["ping", "-c", "5", "-i", "0.05", "-W", "5", "laptop"])

    assert "5 received" in done.stdout
    assert "DUP" not in done.stdout


@pytest.mark.parametrize("sender", ["desktop", "laptop"])
def test_bulk_arrives_whole(slow: Lab, sender: str) -> None:
    receiver = slow.host("laptop" if sender == "desktop" else "desktop")
    seed = secrets.randbelow(1 << 30)

    with receiver.popen([sys.executable, "-c", SERVE]) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            words = [receiver.spec.address, str(seed), str(BULK_BYTES)]
            arrived = slow.host(sender).run([sys.executable, "-c", SEND, *words]).stdout.strip()
        finally:
            server.kill()

    sent = random.Random(seed).randbytes(BULK_BYTES)
    assert arrived == hashlib.sha256(sent).hexdigest()


def test_the_switch_answers_on_its_bridge_alone(slow: Lab) -> None:
    laptop = slow.host("laptop")

    ping = ["ping", "-c", "2", "-i", "0.05", "-W", "5", "192.168.77.254"]
    laptop.run(ping)
    # Once the switch knows the laptop, the answer that the laptop keeps is the first to come.
    laptop.tool(["ip", "neigh", "flush", "all"])
    done = laptop.run(ping)
    known = json.loads(laptop.tool(["ip", "-j", "neigh", "show", "192.168.77.254"]).stdout)
    bridge = json.loads(slow.switch.tool(["ip", "-j", "link", "show", "br-lan"]).stdout)

    assert "2 received" in done.stdout
    assert "DUP" not in done.stdout
    assert [each["lladdr"] for each in known] == [bridge[0]["address"]]


def test_a_cut_takes_the_carrier_and_healing_brings_it_and_the_delay_back(slow: Lab) -> None:
    laptop = slow.host("laptop")

    faults.apply(slow, "cut", ["laptop"])
    carrier_went = until_carrier(laptop, False)
    answered = laptop.run(["ping", "-c", "1", "-W", "1", "desktop"], check=False).returncode == 0
    faults.heal(slow)
    carrier_came = until_carrier(laptop, True)
    trip_s = quickest_s(laptop, "desktop")

    assert carrier_went
    assert not answered
    assert carrier_came
    assert is_delayed(trip_s), trip_s


def test_an_interface_that_its_host_sets_down_and_up_carries_again(slow: Lab) -> None:
    laptop = slow.host("laptop")

    for state in ("down", "up"):
        laptop.tool(["ip", "link", "set", "eth0", state])
    carrier_came = until_carrier(laptop, True)
    trip_s = quickest_s(laptop, "desktop")

    assert carrier_came
    assert is_delayed(trip_s), trip_s


def test_a_host_has_its_delay_again_after_each_power_cycle(slow: Lab) -> None:
    trips_s = []

    for _ in range(3):
        slow.stop_host("laptop")
        slow.start_host("laptop")
        trips_s.append(quickest_s(slow.host("laptop"), "desktop", 5))

    assert all(is_delayed(trip_s) for trip_s in trips_s), trips_s


def test_the_relay_dies_with_its_lab(lab_up: LabUp, tmp_path: Path) -> None:
    lab = lab_up(slow_topology(tmp_path))
    if lab.features.netem:
        pytest.skip("the kernel has netem, which delays links by itself")
    before = relays(lab.id)

    os.kill(lab.keeper.pid, 9)
    gone = lab.init.wait(10.0)

    assert len(before) == 1
    assert gone
    assert relays(lab.id) == []


def test_a_lab_without_delays_has_no_relay(lab_up: LabUp) -> None:
    lab = lab_up("two-hosts-1gbe")

    assert relays(lab.id) == []

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

import pytest
from tests.unit.lab.made import made

from yoked.lab import network, shaping
from yoked.lab.relay import FAR_OFF_S, DelayQueue, Direction, Link
from yoked.lab.shaping import Features
from yoked.lab.topology import Topology

NO_NETEM = Features(netem=False, nft=True)
ALL = Features(netem=True, nft=True)
WIFI = 'rate = "40mbit"\ndelay = "4 ms"\njitter = "3 ms"'
ROOM_BYTES = 1 << 20


def topology(link: str) -> Topology:
    """alpha with a plain link, and beta with one of this shape."""
    return made(f'[[host]]\nname = "alpha"\n[[host]]\nname = "beta"\n{link}')


# ---- the queue ----


def test_a_frame_waits_for_the_delay_and_no_longer() -> None:
    queue = DelayQueue(0.004, 0.0, ROOM_BYTES)

    queue.put(b"frame", now_s=100.0)

    assert queue.due_s == pytest.approx(100.004)
    assert queue.first == b"frame"


@pytest.mark.parametrize(("drawn", "wait_s"), [(0.0, 0.001), (0.5, 0.004), (1.0, 0.007)])
def test_jitter_reaches_as_far_to_both_sides_of_the_delay(drawn: float, wait_s: float) -> None:
    queue = DelayQueue(0.004, 0.003, ROOM_BYTES, draw=lambda: drawn)

    queue.put(b"frame", now_s=100.0)

    assert queue.due_s == pytest.approx(100.0 + wait_s)


def test_frames_far_apart_have_jitters_of_their_own_within_the_bounds() -> None:
    queue = DelayQueue(0.004, 0.003, ROOM_BYTES, draw=random.Random(1).random)
    waits_s = []

    for second in range(1000):
        queue.put(b"frame", now_s=float(second))
        waits_s.append(queue.due_s - second)
        queue.pop()

    assert 0.001 - 1e-9 <= min(waits_s) < 0.0012
    assert 0.0068 < max(waits_s) <= 0.007 + 1e-9
    assert sum(waits_s) / len(waits_s) == pytest.approx(0.004, rel=0.05)


def test_no_frame_overtakes_another() -> None:
    queue = DelayQueue(0.004, 0.003, ROOM_BYTES, draw=random.Random(1).random)
    frames = [f"{number}".encode() for number in range(500)]
    for number, frame in enumerate(frames):
        queue.put(frame, now_s=100.0 + number * 0.0003)

    arrived, dues_s = [], []
    while queue.due_s < FAR_OFF_S:
        arrived.append(queue.first)
        dues_s.append(queue.due_s)
        queue.pop()

    assert arrived == frames
    assert dues_s == sorted(dues_s)
    assert all(due_s >= 100.001 + at * 0.0003 - 1e-9 for at, due_s in enumerate(dues_s))


def test_a_jitter_above_the_delay_brings_no_frame_before_it_came() -> None:
    queue = DelayQueue(0.001, 0.003, ROOM_BYTES, draw=lambda: 0.0)

    queue.put(b"frame", now_s=100.0)

    assert queue.due_s == 100.0


def test_what_does_not_fit_is_dropped_and_what_was_before_it_stays() -> None:
    queue = DelayQueue(0.004, 0.0, limit_bytes=250)

    fitted = [queue.put(bytes([number]) * 100, now_s=100.0) for number in range(3)]
    queue.pop()
    fitted_later = queue.put(bytes(100), now_s=100.01)

    assert fitted == [True, True, False]
    assert fitted_later
    assert queue.first == bytes([1]) * 100


def test_a_queue_that_was_cleared_is_empty_and_has_all_its_room() -> None:
    queue = DelayQueue(0.004, 0.0, limit_bytes=100)
    queue.put(bytes(100), now_s=100.0)

    queue.clear()

    assert queue.due_s == FAR_OFF_S
    assert queue.put(bytes(100), now_s=100.0)


# ---- one direction, between two sockets ----


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """Two pairs: what is sent into the first comes out of the second, through a direction."""
    pairs = [*socket.socketpair(type=socket.SOCK_DGRAM), *socket.socketpair(type=socket.SOCK_DGRAM)]
    for one in pairs:
        one.setblocking(False)
    yield pairs[0], pairs[1], pairs[2], pairs[3]
    for one in pairs:
        one.close()


def test_a_direction_hands_out_what_is_due_and_keeps_the_rest(ends: tuple[socket.socket]) -> None:
    sender, source, target, receiver = ends
    direction = Direction(source, target, DelayQueue(0.004, 0.0, ROOM_BYTES))
    for frame, now_s in ((b"one", 100.0), (b"two", 100.002)):
        sender.send(frame)
        direction.take_in(now_s)

    direction.hand_out(100.005)

    assert receiver.recv(100) == b"one"
    with pytest.raises(BlockingIOError):
        receiver.recv(100)
    assert direction.wake_s == pytest.approx(100.006)


def fill(target: socket.socket) -> int:
    """Send until there is no more room; how much there was."""
    for sent in itertools.count():
        try:
            target.send(b"filler")
        except BlockingIOError:
            return sent
    raise AssertionError


def test_a_frame_that_the_other_side_has_no_room_for_is_tried_again_later(
    ends: tuple[socket.socket],
) -> None:
    sender, source, target, receiver = ends
    direction = Direction(source, target, DelayQueue(0.0, 0.0, ROOM_BYTES))
    filled = fill(target)
    sender.send(b"frame")
    direction.take_in(100.0)

    direction.hand_out(100.0)
    again_s = direction.wake_s
    for _ in range(filled):
        receiver.recv(100)
    direction.hand_out(again_s)

    assert 100.0 < again_s < 100.01
    assert receiver.recv(100) == b"frame"
    assert direction.queue.due_s == FAR_OFF_S


def test_a_frame_for_a_cable_that_is_out_is_lost(ends: tuple[socket.socket]) -> None:
    sender, source, target, receiver = ends
    direction = Direction(source, target, DelayQueue(0.0, 0.0, ROOM_BYTES))
    sender.send(b"frame")
    direction.take_in(100.0)
    receiver.close()

    direction.hand_out(100.0)

    assert direction.queue.due_s == FAR_OFF_S


# ---- what is asked of it ----


def test_only_links_with_a_delay_and_no_netem_go_through_the_relay() -> None:
    jittery = 'delay = "1 ms"\njitter = "1 ms"'
    lossy = 'rate = "40mbit"\nloss = "10%"'

    assert shaping.relayed_ports(topology(WIFI), NO_NETEM) == {"p1-eth0"}
    assert shaping.relayed_ports(topology(jittery), NO_NETEM) == {"p1-eth0"}
    assert shaping.relayed_ports(topology(WIFI), ALL) == frozenset()
    assert shaping.relayed_ports(topology(lossy), NO_NETEM) == frozenset()


def test_the_relay_is_told_each_links_ends_and_delay_and_the_room_for_what_is_under_way() -> None:
    far_away = 'rate = "8gbit"\ndelay = "100 ms"'

    (wifi,) = [Link(**each) for each in shaping.relay_links(topology(WIFI), NO_NETEM)]
    (satellite,) = [Link(**each) for each in shaping.relay_links(topology(far_away), NO_NETEM)]

    assert (wifi.near, wifi.far) == ("c1-eth0", "x1-eth0")
    assert (wifi.delay_s, wifi.jitter_s) == (0.004, 0.003)
    assert wifi.limit_bytes > 1 << 20
    assert satellite.limit_bytes > 100_000_000


def test_a_relayed_cable_ends_at_the_relay_and_stays_down_until_that_is_ready() -> None:
    whole = topology(WIFI)

    lines = network.plug(whole.hosts[1], 4711, whole, shaping.relayed_ports(whole, NO_NETEM))

    assert "link add dev p1-eth0 type veth peer name x1-eth0" in lines
    cable = "link add dev c1-eth0 type veth peer name eth0 address 02:79:6b:00:01:00 netns 4711"
    assert cable in lines
    assert lines[-1] == "link set dev p1-eth0 master br-lan up"
    assert not [line for line in lines if "c1-eth0" in line and line.endswith(" up")]


def test_a_host_beside_it_is_plugged_in_as_ever() -> None:
    whole = topology(WIFI)
    alpha = whole.hosts[0]

    lines = network.plug(alpha, 4711, whole, shaping.relayed_ports(whole, NO_NETEM))

    assert lines == network.plug(alpha, 4711, whole)


def test_what_the_relay_leaves_of_a_host_is_taken_out() -> None:
    whole = topology(WIFI)
    relayed = shaping.relayed_ports(whole, NO_NETEM)

    assert network.unplug(whole.hosts[0], relayed) == ["link delete dev p0-eth0"]
    assert network.unplug(whole.hosts[1], relayed) == [
        "link delete dev p1-eth0",
        "link delete dev c1-eth0",
    ]


def test_the_relays_devices_hang_on_a_bridge_that_is_never_up() -> None:
    whole = topology(WIFI)
    lines = [
        *network.build_switch(whole),
        *network.build_relay(),
        *network.plug(whole.hosts[1], 1, whole, shaping.relayed_ports(whole, NO_NETEM)),
    ]

    masters = {line.split()[3]: line.split()[5] for line in lines if " master " in line}

    assert masters["c1-eth0"] == masters["x1-eth0"] != masters["p1-eth0"]
    assert f"link set dev {masters['x1-eth0']} up" not in lines

"""Delays the frames of links where the kernel has no netem. Standard library only.

One process in the lab's switch serves all delayed links. It joins the host's cable to its port:

    eth0 (host) -- near end, c0-eth0 | this process | far end, x0-eth0 -- p0-eth0 (the bridge's)

Each direction waits on its own: delay plus or minus a uniform jitter, but frames never overtake
each other, so that under load the wait comes close to delay plus jitter. Rates and losses are not
done here: tc and nft see to them at eth0 and p0-eth0, as on any other link. A port that is set
down takes the host's carrier along, as it would without a relay between.

Measured on two cores of a virtual machine: a frame is 0.1 to 0.3 ms late; 40 Mbit/s of TCP in
single frames cost a fifth of a core, 80,000 frames/s (0.95 Gbit/s) half of one; a connection whose
frames come in pieces (no loss anywhere) reaches 2.4 Gbit/s. What comes faster than it is carried
is dropped. So are pieces of tunnels (VXLAN, GRE), which a raw socket cannot express; VLAN tags are
lost.

Its one argument is JSON: {"init", "user_namespace", "links": [...]}, the links as `Link` has them.
The process that was started ends once its child runs as a process of the lab, with which it dies.

Sources: packet(7), linux/virtio_net.h, rtnetlink(7).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from yoked.lab import syscalls
from yoked.lab.hostinit import enter_lab

# A frame, or what TCP hands over in one piece, behind the header that tells of its checksum.
_LARGEST_BYTES = 65536 + 64
# Frames of one direction at a time: the others and the clock have their turn in between.
_TURN = 64
# What a device holds while this process does not get the CPU.
_RECEIVE_BYTES = 8 << 20
_RETRY_S, _LONGEST_WAIT_S = 0.0005, 3600.0
# More than any machine's monotonic clock comes to.
FAR_OFF_S = 1e12
# Before other programs: the kernel's own queues would not wait for them either.
_NICE = -15

_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_RCVBUFFORCE = 33
_ETH_P_ALL = 3


class DelayQueue:
    """Frames that are under way in one direction. The caller has the clock.

    limit_bytes: what does not fit is dropped. draw: a number in [0, 1) for each frame's jitter.
    """

    def __init__(
        self,
        delay_s: float,
        jitter_s: float,
        limit_bytes: int,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._least_s = delay_s - jitter_s
        self._span_s = 2 * jitter_s
        self._limit_bytes = limit_bytes
        self._draw = draw
        self._frames: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._last_due_s = 0.0

    def put(self, frame: bytes, now_s: float) -> bool:
        """Send a frame on its way; whether there was room for it."""
        if self._held_bytes + len(frame) > self._limit_bytes:
            return False
        wait_s = self._least_s + self._span_s * self._draw()
        # Not before the frame in front of it, nor before it came.
        self._last_due_s = max(now_s, now_s + wait_s, self._last_due_s)
        self._frames.append((self._last_due_s, frame))
        self._held_bytes += len(frame)
        return True

    @property
    def due_s(self) -> float:
        """When the next frame arrives; FAR_OFF_S when none is under way."""
        return self._frames[0][0] if self._frames else FAR_OFF_S

    @property
    def first(self) -> bytes:
        """The frame that arrives next."""
        return self._frames[0][1]

    def pop(self) -> None:
        """The first frame has arrived."""
        self._held_bytes -= len(self._frames.popleft()[1])

    def clear(self) -> None:
        """Lose all that is under way."""
        self._frames.clear()
        self._held_bytes = 0


class Direction:
    """From the device of one socket to that of another."""

    def __init__(self, source: socket.socket, target: socket.socket, queue: DelayQueue) -> None:
        self.source = source
        self.source_fd = source.fileno()
        self.target = target
        self.queue = queue
        self._wait_until_s = 0.0

    @property
    def wake_s(self) -> float:
        """When there is something to send."""
        return max(self.queue.due_s, self._wait_until_s)

    def take_in(self, now_s: float) -> None:
        """Read what has come, or a turn's worth of it."""
        for _ in range(_TURN):
            try:
                frame = self.source.recv(_LARGEST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # The device went down, or a frame whose checksum the header cannot express.
                continue
            self.queue.put(frame, now_s)

    def hand_out(self, now_s: float) -> None:
        """Send what is due, or a turn's worth of it."""
        queue = self.queue
        for _ in range(_TURN):
            if queue.due_s > now_s:
                return
            try:
                self.target.send(queue.first)
            except BlockingIOError:
                # What it sent last is still queued behind some other port.
                self._wait_until_s = now_s + _RETRY_S
                return
            except OSError:
                pass  # the cable is out: lost
            queue.pop()


@dataclass
class Link:
    """A delayed link. near, far: names of the two devices in the switch that are joined.

    limit_bytes: of what is under way in one direction.
    """

    near: str
    far: str
    delay_s: float
    jitter_s: float
    limit_bytes: int
    directions: list[Direction] = field(default_factory=list)
    _indexes: tuple[int, int] | None = None

    def follow(self, devices: Devices) -> None:
        """Open the link when its devices are there, and let the host's carrier be the port's."""
        near, far = devices.known.get(self.near), devices.known.get(self.far)
        indexes = (near.index, far.index) if near and far else None
        if indexes != self._indexes:
            self._close()
            if indexes is not None and not self._open(indexes):
                return
        if near and far and near.is_up != far.has_carrier:
            devices.set_up(near, far.has_carrier)
            if not far.has_carrier:
                for direction in self.directions:
                    direction.queue.clear()

    def _open(self, indexes: tuple[int, int]) -> bool:
        try:
            near, far = _raw_socket(self.near), _raw_socket(self.far)
        except OSError as problem:
            # Gone again, of which the kernel will tell next; or AF_PACKET is missing.
            sys.stderr.write(f"{self.near}, {self.far}: {problem}\n")
            return False
        self._indexes = indexes
        self.directions = [
            Direction(one, other, DelayQueue(self.delay_s, self.jitter_s, self.limit_bytes))
            for one, other in ((near, far), (far, near))
        ]
        return True

    def _close(self) -> None:
        for direction in self.directions:
            direction.source.close()
        self.directions = []
        self._indexes = None


def _raw_socket(device: str) -> socket.socket:
    """All frames that come in at a device, and a way to send there."""
    # Protocol 0 hears nothing; else it would hear all devices until it is bound to one.
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        # A header with what the network card has yet to do: checksums, and cutting up.
        raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        raw.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        with contextlib.suppress(PermissionError):
            # Past the machine's limit, which only its root may.
            raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        raw.setblocking(False)
        raw.bind((device, _ETH_P_ALL))
    except OSError:
        raw.close()
        raise
    return raw


# ---- which devices there are, and whether they have a carrier ----

_NLMSG_ALIGN = 4
_HEADER, _LINK_INFO, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), "=HH"
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_RTMGRP_LINK = 1
_IFLA_IFNAME = 3
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x1_0000


@dataclass(frozen=True)
class Device:
    """A network device at one moment."""

    index: int
    flags: int

    @property
    def is_up(self) -> bool:
        """Whether it is set up."""
        return bool(self.flags & _IFF_UP)

    @property
    def has_carrier(self) -> bool:
        """Whether it is up and the other end of its cable is."""
        return bool(self.flags & _IFF_LOWER_UP)


class Devices:
    """The devices of this network namespace by name, kept up to date by the kernel's messages."""

    def __init__(self) -> None:
        self.known: dict[str, Device] = {}
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.socket.bind((0, _RTMGRP_LINK))
        self.socket.setblocking(False)
        self._ask_for_all()

    def _ask_for_all(self) -> None:
        self._send(_RTM_GETLINK, _NLM_F_REQUEST | _NLM_F_DUMP, _LINK_INFO.pack(0, 0, 0, 0, 0))

    def set_up(self, device: Device, up: bool) -> None:
        """Set a device up or down, as `ip link set` does."""
        info = _LINK_INFO.pack(0, 0, device.index, _IFF_UP if up else 0, _IFF_UP)
        self._send(_RTM_NEWLINK, _NLM_F_REQUEST, info)

    def _send(self, kind: int, flags: int, payload: bytes) -> None:
        header = _HEADER.pack(_HEADER.size + len(payload), kind, flags, 0, 0)
        self.socket.send(header + payload)

    def listen(self) -> None:
        """Take in what the kernel has told since."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno != errno.ENOBUFS:
                    raise
                # Some messages were lost.
                self._ask_for_all()
                continue
            for kind, payload in _parts(data):
                self._hear(kind, payload)

    def _hear(self, kind: int, payload: bytes) -> None:
        if kind not in (_RTM_NEWLINK, _RTM_DELLINK):
            return
        family, _, index, flags, _ = _LINK_INFO.unpack_from(payload)
        # Bridges tell of their ports by the same messages.
        if family != socket.AF_UNSPEC:
            return
        name = _name(payload[_LINK_INFO.size :])
        if kind == _RTM_NEWLINK:
            self.known[name] = Device(index, flags)
        elif name in self.known and self.known[name].index == index:
            del self.known[name]


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(kind, payload) of each message; netlink(7)."""
    while len(data) >= _HEADER.size:
        length, kind = _HEADER.unpack_from(data)[:2]
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _name(attributes: bytes) -> str:
    size = struct.calcsize(_ATTRIBUTE)
    while len(attributes) >= size:
        length, kind = struct.unpack_from(_ATTRIBUTE, attributes)
        if kind == _IFLA_IFNAME:
            return attributes[size:length].rstrip(b"\0").decode()
        attributes = attributes[_aligned(length) :]
    return ""


def _aligned(length: int) -> int:
    return max(_NLMSG_ALIGN, (length + _NLMSG_ALIGN - 1) // _NLMSG_ALIGN * _NLMSG_ALIGN)


# ---- the process ----


def relay(links: list[Link]) -> None:
    """Carry frames, for ever."""
    devices = Devices()
    told = devices.socket.fileno()
    sources = [told]
    directions: list[Direction] = []
    try:
        while True:
            wake_s = min([direction.wake_s for direction in directions], default=FAR_OFF_S)
            wait_s = max(0.0, wake_s - time.monotonic())
            # epoll_wait(2) counts whole milliseconds, this microseconds.
            ready = select.select(sources, (), (), min(wait_s, _LONGEST_WAIT_S))[0]
            now_s = time.monotonic()
            for direction in directions:
                if direction.source_fd in ready:
                    direction.take_in(now_s)
                if direction.wake_s <= now_s:
                    direction.hand_out(now_s)
            if told in ready:
                devices.listen()
                for link in links:
                    link.follow(devices)
                directions = [each for link in links for each in link.directions]
                sources = [told, *(each.source_fd for each in directions)]
    finally:
        # A link that carries nothing must not look well.
        for link in links:
            if near := devices.known.get(link.near):
                devices.set_up(near, False)


def main() -> None:
    """Become a process of the lab, and relay."""
    config: dict[str, Any] = json.loads(sys.argv[1])
    links = [Link(**each) for each in config["links"]]
    enter_lab(config["init"], config["user_namespace"])
    if child := os.fork():
        # Its parent is outside of the lab, whose end waits until this child is collected.
        os._exit(1 if os.waitpid(child, 0)[1] else 0)
    if os.fork():
        os._exit(0)  # what follows belongs to the lab's first process
    os.setsid()
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)
    syscalls.drop_capabilities()
    relay(links)

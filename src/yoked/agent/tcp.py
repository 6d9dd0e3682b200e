"""The TCP connections of processes as the kernel has them: what waits, what was lost, how fast.

One request gives all of this network namespace, without root. Source: sock_diag(7),
linux/inet_diag.h, linux/tcp.h (struct tcp_info).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from yoked.agent.netlink import DUMP, ask, attributes

_SOCK_DIAG, _BY_FAMILY = 4, 20
_INFO = 2
_ESTABLISHED = 1
# States that are asked for: established, and those in which an end has said that it is through.
_STATES = 1 << _ESTABLISHED | 1 << 4 | 1 << 5 | 1 << 8
# The first packet was sent, and no answer came.
_CONNECTING = 1 << 2
# The timer that runs: it asks whether the other end has room again. Source: inet_diag.h
_WINDOW_PROBE = 4
_REQUEST = struct.Struct("=BBBBI")
_WILDCARD = struct.pack("!HH16s16sI8s", 0, 0, b"", b"", 0, b"\xff" * 8)
_BASIC = struct.Struct("=BBBB")
_ENDS = struct.Struct("!HH16s16s")
_QUEUES = struct.Struct("=IIIII")
_ENDS_AT, _QUEUES_AT, _ATTRIBUTES_AT = 4, 52, 72


class Connection(NamedTuple):
    """An end of a TCP connection.

    unread_bytes: arrived, and not taken by the program. unsent_bytes: given by the program, and
    not acknowledged. backoff: times that the retransmission timer was doubled; 0: all is well.
    retransmitted, segments, arrived: packets that were sent again, sent and received, in all.
    acked_ms_ago, heard_ms_ago: since the last acknowledgement, and the last data, came.
    rtt_s: smoothed. sent_bytes, received_bytes: in all, acknowledged. window_shut: the other end
    acknowledges, and has no room: its program does not read. Its timer is doubled too.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    established: bool
    inode: int
    unread_bytes: int
    unsent_bytes: int
    backoff: int
    retransmitted: int
    segments: int
    arrived: int
    acked_ms_ago: int
    heard_ms_ago: int
    rtt_s: float
    sent_bytes: int
    received_bytes: int
    window_shut: bool


def connections(
    family: socket.AddressFamily = socket.AF_INET, *, connecting: bool = False
) -> Iterator[Connection]:
    """All of this host, of one family. connecting: those that wait for a first answer instead.

    Raises OSError.
    """
    states = _CONNECTING if connecting else _STATES
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, states) + _WILDCARD
    for content in ask(_SOCK_DIAG, _BY_FAMILY, DUMP, body):
        info = attributes(content[_ATTRIBUTES_AT:]).get(_INFO)
        if info is not None:
            yield _connection(content, info)


def _connection(content: bytes, info: bytes) -> Connection:
    family, state, timer, _ = _BASIC.unpack_from(content)
    local_port, remote_port, local, remote = _ENDS.unpack_from(content, _ENDS_AT)
    _, unread, unsent, _, inode = _QUEUES.unpack_from(content, _QUEUES_AT)
    length = 4 if family == socket.AF_INET else 16

    def u32(at: int) -> int:
        return int(struct.unpack_from("=I", info, at)[0]) if len(info) >= at + 4 else 0

    def u64(at: int) -> int:
        return int(struct.unpack_from("=Q", info, at)[0]) if len(info) >= at + 8 else 0

    return Connection(
        local=(str(ip_address(local[:length])), local_port),
        remote=(str(ip_address(remote[:length])), remote_port),
        established=state == _ESTABLISHED,
        inode=inode,
        unread_bytes=unread,
        unsent_bytes=unsent,
        backoff=info[4] if len(info) > 4 else 0,
        retransmitted=u32(100),
        segments=u32(136),
        arrived=u32(140),
        acked_ms_ago=u32(56),
        heard_ms_ago=u32(52),
        rtt_s=u32(68) / 1e6,
        sent_bytes=u64(120),
        received_bytes=u64(128),
        window_shut=timer == _WINDOW_PROBE,
    )

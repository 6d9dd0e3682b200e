"""Ask Linux's kernel for ways and neighbours, without root and without `ip`.

Source: netlink(7), rtnetlink(7), linux/rtnetlink.h, linux/neighbour.h.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

_GET_ADDRESSES, _GET_ROUTE, _GET_NEIGHBOURS, _GET_QUEUES = 22, 26, 30, 38
_ERROR, _DONE = 2, 3
_REQUEST, DUMP = 0x1, 0x300
ROUTE = 0
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BBHiHBB")
_ATTRIBUTE = struct.Struct("=HH")
_HOP = struct.Struct("=HBBi")
# Of linux/pkt_sched.h: struct tcmsg.
_QUEUE = struct.Struct("=BxxxiIII")
_TCA_KIND = 1
# Of linux/if_addr.h: struct ifaddrmsg, and struct ifa_cacheinfo with hundredths of a second.
_ADDRESS = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL, _IFA_TIMES = 1, 2, 6
_TIMES = struct.Struct("=IIII")
_FOREVER = 0xFFFFFFFF
_RTA_DESTINATION, _RTA_FROM, _RTA_INTERFACE, _RTA_GATEWAY, _RTA_SOURCE = 1, 2, 4, 5, 7
_RTA_HOPS = 9
_RTA_METRICS, _RTA_TABLE, _RTA_PROTOCOL, _RTA_TARGET_PORT = 8, 15, 27, 29
# Those of linux/rtnetlink.h that shape what is sent, by the words of ip-route(8).
_METRICS = {
    2: "mtu",
    3: "window",
    6: "ssthresh",
    7: "cwnd",
    8: "advmss",
    9: "reordering",
    10: "hoplimit",
    11: "initcwnd",
    13: "rto_min",
    14: "initrwnd",
    15: "quickack",
}
_RTAX_CONGESTION = 16
# Of rtm_type.
_KINDS = {
    1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole",
    7: "unreachable", 8: "prohibit", 9: "throw", 10: "nat",
}  # fmt: skip
# Have the answer be the route itself, not what it gives for this address.
_THE_ROUTE = 0x2000
_NDA_ADDRESS, _NDA_HARDWARE = 1, 2
_TYPE_MASK = 0x3FFF
_NETFILTER, _GET_CHAINS = 12, 10 << 8 | 4
_FAMILY = struct.Struct("=BBH")
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_USE = 1, 3, 6
_STATES = {
    0x01: "incomplete",
    0x02: "reachable",
    0x04: "stale",
    0x08: "delay",
    0x10: "probe",
    0x20: "failed",
    0x40: "noarp",
    0x80: "permanent",
}
_MOST_BYTES = 65_536
_PATIENCE_S = 1.0


class Neighbour(NamedTuple):
    """What the kernel knows of an address on a link. state: such as reachable or failed."""

    address: str
    interface: str | None
    state: str
    hardware: str | None


class Hop(NamedTuple):
    """One of the next hops of a route that has several, of which each connection takes one."""

    interface: str | None
    gateway: str | None
    weight: int


class Route(NamedTuple):
    """A route as it stands in a table. network and prefix: 0.0.0.0/0 is the default; gateway:
    None: straight to the neighbours; source: the address that it has packets sent from, None: it
    names none; hops: empty where there is one; metrics: what it asks of connections, such as a
    window, in the words of ip-route(8); kind: such as unicast, local or broadcast; table: its
    number, 254 is main, 255 local.
    """

    network: str
    prefix: int
    gateway: str | None
    source: str | None
    hops: tuple[Hop, ...]
    metrics: dict[str, int | str]
    kind: str
    table: int


class Given(NamedTuple):
    """An address of this host. valid_s: until the kernel takes it away; None: never. since_s: by
    the monotonic clock, when it was given.
    """

    address: str
    interface: str | None
    valid_s: int | None
    since_s: float


def can_ask() -> bool:
    """Whether this system has netlink."""
    return hasattr(socket, "AF_NETLINK")


def interface_to(address: str, port: int | None = None, source: str | None = None) -> str | None:
    """The interface by which the kernel would send to an address. port: of TCP there; source: the
    address from which; None: any. Rules may send some ports, or what is from some addresses,
    another way.

    Raises OSError, ENETUNREACH where there is no way.
    """
    more = b""
    if port is not None:
        more = _attribute(_RTA_PROTOCOL, bytes([socket.IPPROTO_TCP]))
        more += _attribute(_RTA_TARGET_PORT, port.to_bytes(2, "big"))
    for content in _ask_way(address, 0, more, source):
        index = attributes(content[_ROUTE.size :]).get(_RTA_INTERFACE)
        return None if index is None else _name(int.from_bytes(index, sys.byteorder))
    raise OSError("the kernel did not say")


def route_to(address: str, source: str | None = None) -> Route:
    """The route that the kernel takes for an address; source: from which. Raises OSError where
    there is none.
    """
    for content in _ask_way(address, _THE_ROUTE, source=source):
        told = attributes(content[_ROUTE.size :])
        _, prefix, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(content)
        number = told.get(_RTA_TABLE)
        everywhere = "::" if ":" in address else "0.0.0.0"  # noqa: S104 - names the default route
        return Route(
            network=_text(told.get(_RTA_DESTINATION)) or everywhere,
            prefix=prefix,
            gateway=_text(told.get(_RTA_GATEWAY)),
            source=_text(told.get(_RTA_SOURCE)),
            hops=tuple(_hops(told.get(_RTA_HOPS, b""))),
            metrics=dict(_metrics(told.get(_RTA_METRICS, b""))),
            kind=_KINDS.get(kind, "unknown"),
            table=int.from_bytes(number, sys.byteorder) if number else table,
        )
    raise OSError("the kernel did not say")


def _ask_way(
    address: str, flags: int, more: bytes = b"", source: str | None = None
) -> Iterator[bytes]:
    found = ip_address(address)
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    source_bits = 0 if source is None else found.max_prefixlen
    if source is not None:
        more += _attribute(_RTA_FROM, ip_address(source).packed)
    head = _ROUTE.pack(family, found.max_prefixlen, source_bits, 0, 0, 0, 0, 0, flags)
    return ask(ROUTE, _GET_ROUTE, 0, head + _attribute(_RTA_DESTINATION, found.packed) + more)


def _attribute(kind: int, content: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(_aligned(size) - size)


def _hops(data: bytes) -> Iterator[Hop]:
    at = 0
    while at + _HOP.size <= len(data):
        length, _, more, index = _HOP.unpack_from(data, at)
        if length < _HOP.size:
            return
        told = attributes(data[at + _HOP.size : at + length])
        yield Hop(_name(index), _text(told.get(_RTA_GATEWAY)), more + 1)
        at += _aligned(length)


def _metrics(data: bytes) -> Iterator[tuple[str, int | str]]:
    for kind, content in attributes(data).items():
        if kind in _METRICS and len(content) == 4:
            yield _METRICS[kind], int.from_bytes(content, sys.byteorder)
        elif kind == _RTAX_CONGESTION:
            yield "congctl", content.rstrip(b"\0").decode("ascii", "replace")


def given() -> Iterator[Given]:
    """All addresses of IPv4 that this host has. Raises OSError."""
    body = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)
    for content in ask(ROUTE, _GET_ADDRESSES, DUMP, body):
        told = attributes(content[_ADDRESS.size :])
        # Of a tunnel the other is that of its far end.
        address = _text(told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS))
        times = told.get(_IFA_TIMES, b"")
        if address is not None and len(times) >= _TIMES.size:
            _, valid_s, since, _ = _TIMES.unpack_from(times)
            name = _name(_ADDRESS.unpack_from(content)[4])
            yield Given(address, name, None if valid_s == _FOREVER else valid_s, since / 100)


def neighbours() -> Iterator[Neighbour]:
    """All that the kernel knows of addresses on its links."""
    body = _NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0, 0)
    for content in ask(ROUTE, _GET_NEIGHBOURS, DUMP, body):
        _, _, _, index, state, _, _ = _NEIGHBOUR.unpack_from(content)
        told = attributes(content[_NEIGHBOUR.size :])
        address = _text(told.get(_NDA_ADDRESS))
        if address is not None:
            hardware = told.get(_NDA_HARDWARE)
            yield Neighbour(
                address,
                _name(index),
                _STATES.get(state, "none"),
                hardware.hex(":") if hardware else None,
            )


def queues() -> dict[str, set[str]]:
    """{interface: kinds of its queues}, such as fq_codel, tbf of a shaper, or ingress. Raises
    OSError.
    """
    found: dict[str, set[str]] = {}
    for content in ask(ROUTE, _GET_QUEUES, DUMP, _QUEUE.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        kind = attributes(content[_QUEUE.size :]).get(_TCA_KIND, b"").rstrip(b"\0")
        name = _name(_QUEUE.unpack_from(content)[1])
        if name is not None:
            found.setdefault(name, set()).add(kind.decode("ascii", "replace"))
    return found


def chains() -> Iterator[tuple[str, int]]:
    """(chain, as nft names it, how many rules it has) of all chains of nftables. For root alone.

    Raises OSError. Source: linux/netfilter/nf_tables.h.
    """
    for content in ask(_NETFILTER, _GET_CHAINS, DUMP, _FAMILY.pack(0, 0, 0)):
        told = attributes(content[_FAMILY.size :])
        words = [told.get(each, b"").rstrip(b"\0").decode("utf-8", "replace")
                 for each in (_CHAIN_TABLE, _CHAIN_NAME)]  # fmt: skip
        family = _FAMILIES.get(content[0], "")
        # Each jump to it counts as well.
        yield " ".join([family, *words]), int.from_bytes(told.get(_CHAIN_USE, b""), "big")


def ask(family: int, kind: int, flags: int, body: bytes) -> Iterator[bytes]:
    """The kernel's answers to one request, without their headers. Raises OSError.

    family: whom is asked, such as ROUTE.
    """
    head = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as line:
        line.settimeout(_PATIENCE_S)
        line.send(head + body)
        while True:
            data = line.recv(_MOST_BYTES)
            for answer_kind, content in _messages(data):
                if answer_kind == _DONE:
                    return
                if answer_kind == _ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    raise OSError(number, os.strerror(number))
                yield content
            if not flags & DUMP:
                return


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def attributes(data: bytes) -> dict[int, bytes]:
    """What follows the fixed part of an answer, by kind."""
    found, at = {}, 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _text(packed: bytes | None) -> str | None:
    return None if packed is None or len(packed) not in (4, 16) else str(ip_address(packed))


def _name(index: int) -> str | None:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return None

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

_GET_ROUTE, _GET_NEIGHBOURS = 26, 30
_ERROR, _DONE = 2, 3
_REQUEST, DUMP = 0x1, 0x300
ROUTE = 0
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BBHiHBB")
_ATTRIBUTE = struct.Struct("=HH")
_RTA_DESTINATION, _RTA_INTERFACE = 1, 4
_NDA_ADDRESS, _NDA_HARDWARE = 1, 2
_TYPE_MASK = 0x3FFF
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


def can_ask() -> bool:
    """Whether this system has netlink."""
    return hasattr(socket, "AF_NETLINK")


def interface_to(address: str) -> str | None:
    """The interface by which the kernel would send to an address.

    Raises OSError, ENETUNREACH where there is no way.
    """
    found = ip_address(address)
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    target = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(found.packed), _RTA_DESTINATION) + found.packed
    body = _ROUTE.pack(family, found.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + target
    for content in ask(ROUTE, _GET_ROUTE, 0, body):
        index = attributes(content[_ROUTE.size :]).get(_RTA_INTERFACE)
        return None if index is None else _name(int.from_bytes(index, sys.byteorder))
    raise OSError("the kernel did not say")


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

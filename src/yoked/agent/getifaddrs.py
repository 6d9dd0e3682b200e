"""getifaddrs(3) of the C library, which Python does not offer."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any


class _IfAddrs(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3), alike on Linux and macOS."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def getifaddrs() -> Iterator[tuple[str, int, IPv4Address | IPv6Address, int | None]]:
    """(name, flags, address, length of its prefix) of each IP address, in the system's order."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if library.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        # A null pointer is false.
        here: Any = first
        while here:
            entry = here.contents
            address = _address(entry.address)
            if address is not None:
                mask = _address(entry.netmask)
                prefix = None if mask is None else bin(int(mask)).count("1")
                yield entry.name.decode(), entry.flags, address, prefix
            here = entry.next
    finally:
        library.freeifaddrs(first)


def _address(place: int | None) -> IPv4Address | IPv6Address | None:
    """The IP address in a struct sockaddr; None for another family."""
    if not place:
        return None
    # 4.4BSD, and so macOS, begins with a byte for the length.
    head = ctypes.string_at(place, 2)
    family = head[1] if sys.platform == "darwin" else int.from_bytes(head, sys.byteorder)
    if family == socket.AF_INET:
        return IPv4Address(ctypes.string_at(place + 4, 4))
    if family == socket.AF_INET6:
        return IPv6Address(ctypes.string_at(place + 8, 16))
    return None

"""Free a rank that is blocked in a collective: end its connections to the other ranks.

Gloo's call then raises within milliseconds; its own `abort` frees nothing (torch 2.13 to 2.15).
The store's connection stays, so that a new group can meet. Source: shutdown(2).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

# Where ranks of this run are: addresses, with blanks between them.
ADDRESSES_VARIABLE = "YOKED_RANK_ADDRESSES"


def free_rank() -> int:
    """Shut this process's TCP connections to hosts of the run; returns their number."""
    addresses = os.environ.get(ADDRESSES_VARIABLE, "").split()
    store_port = int(os.environ.get("MASTER_PORT", "0"))
    shut = 0
    for connection in _connections():
        with connection, suppress(OSError):
            address, port = connection.getpeername()[:2]
            at_store = port == store_port and ip_address(address).is_loopback
            if not at_store and _plain(address) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                shut += 1
    return shut


def _connections() -> Iterator[socket.socket]:
    """A second descriptor of each internet stream socket of this process."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is wanted
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
            if found.family in (socket.AF_INET, socket.AF_INET6) and (
                found.type == socket.SOCK_STREAM
            ):
                yield found
            else:
                found.close()


def _plain(address: str) -> str:
    """An address without a zone; ::ffff:10.0.0.1 is 10.0.0.1."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)

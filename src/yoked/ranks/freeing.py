"""Free a rank that is blocked in a collective: end its connections to the other ranks.

Gloo's call then raises within milliseconds; its own `abort` frees nothing (torch 2.13 to 2.15).
The store's connection stays, so that a new group can meet. Source: shutdown(2).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from yoked.ranks.own_sockets import own_sockets

# Where ranks of this run are: addresses, with blanks between them.
ADDRESSES_VARIABLE = "YOKED_RANK_ADDRESSES"


def free_rank() -> int:
    """Shut this process's TCP connections to hosts of the run; returns their number."""
    addresses = os.environ.get(ADDRESSES_VARIABLE, "").split()
    store_port = int(os.environ.get("MASTER_PORT", "0"))
    shut = 0
    for connection in own_sockets():
        with connection, suppress(OSError):
            address, port = connection.getpeername()[:2]
            at_store = port == store_port and ip_address(address).is_loopback
            if not at_store and plain_address(address) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                shut += 1
    return shut


def plain_address(address: str) -> str:
    """An address without a zone; ::ffff:10.0.0.1 is 10.0.0.1."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)

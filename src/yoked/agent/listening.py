"""Listen on each address of this host by itself, one port number for all of them.

A socket on all addresses would also be on those that come later: a network that is joined while it
listens, a container's bridge.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Iterator, Sequence

from yoked.agent.interfaces import entries

MOST_AT_ONCE = 64
_POLL_S = 0.1
# How often another port is sought, when one that an address gave is taken at another.
_TRIES = 20


def open_listeners(port: int = 0) -> list[socket.socket]:
    """A listener on each address, all at this port (0: one that is free on all).

    Raises OSError where it is taken on one of them.
    """
    for _ in range(_TRIES - 1):
        try:
            return _open(port)
        except OSError as problem:
            if port or problem.errno != errno.EADDRINUSE:
                raise
    return _open(port)


def own_addresses() -> list[str]:
    """The addresses at which others may dial this host, and its loopback's.

    Without link-local ones of IPv6: nobody dials them, for they mean another host on each link.
    """
    found = [
        str(entry.address)
        for entry in entries()
        if entry.is_up and not (entry.address.version == 6 and entry.address.is_link_local)
    ]
    return list(dict.fromkeys(found))


def _open(port: int) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        found: list[socket.socket] = []
        for address in own_addresses():
            try:
                listener = stack.enter_context(bound(address, port))
            except OSError as problem:
                # It is gone since, or not ours yet: IPv6 asks first whether another has it.
                if problem.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                raise
            found.append(listener)
            port = port or listener.getsockname()[1]
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, "this host has no address")
        stack.pop_all()
        return found


def bound(address: str, port: int) -> socket.socket:
    """A listener at one address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=MOST_AT_ONCE)


def accepted(listeners: Sequence[socket.socket]) -> Iterator[socket.socket]:
    """The connections that come within a moment."""
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in selector.select(_POLL_S)]
    for listener in listeners:
        if listener in ready:
            # Whoever knocked may be gone again.
            with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                connection = listener.accept()[0]
                connection.setblocking(True)
                yield connection

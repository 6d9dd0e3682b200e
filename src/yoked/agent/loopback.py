"""Whether this host reaches itself: torch's store and launchers meet their ranks on loopback."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Sequence

from yoked.agent.listening import bound, own_addresses

_LOOPBACK = "127.0.0.1"
# A host that reaches itself has done so before `connect` returns.
_WAIT_S = 0.5
_MOST = 16
# More than a shaper lets pass at once; a host takes it from itself in less than a millisecond.
_DATA_BYTES, _DATA_S = 131_072, 0.4
# Of a dial: there is no port to dial from, which is another trouble.
_NO_PORT = (errno.EADDRNOTAVAIL, errno.EAGAIN)


def probe_loopback() -> dict[str, str | None]:
    """{address: why this host cannot dial itself there, such as ETIMEDOUT; null: it can}, of
    127.0.0.1 and its own addresses. ETIME, of the first: data does not come there in time.
    """
    found = dial_itself(list(dict.fromkeys([_LOOPBACK, *own_addresses()]))[:_MOST])
    if found[_LOOPBACK] is None and not data_comes():
        found[_LOOPBACK] = "ETIME"
    return found


def data_comes() -> bool:
    """Whether a piece of data comes from loopback to loopback in a moment."""
    try:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(bound(_LOOPBACK, 0))
            listener.settimeout(_DATA_S)
            place = listener.getsockname()
            sender = stack.enter_context(socket.create_connection(place, _DATA_S))
            taker = stack.enter_context(listener.accept()[0])
            return _passes(sender, taker)
    except socket.timeout:  # noqa: UP041 - no TimeoutError before Python 3.10
        return False
    except OSError:
        # Without a port or a descriptor nothing is known of that.
        return True


def _passes(sender: socket.socket, taker: socket.socket) -> bool:
    until_s = time.monotonic() + _DATA_S
    left_bytes, come_bytes = _DATA_BYTES, 0
    sender.setblocking(False)
    while come_bytes < _DATA_BYTES:
        with contextlib.suppress(BlockingIOError):
            left_bytes -= sender.send(bytes(left_bytes)) if left_bytes else 0
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        taker.settimeout(left_s)
        come_bytes += len(taker.recv(_DATA_BYTES))
    return True


def dial_itself(addresses: Sequence[str], wait_s: float = _WAIT_S) -> dict[str, str | None]:
    """The same of these addresses, each with a listener for a moment."""
    found: dict[str, str | None] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for address in addresses:
            try:
                listener = stack.enter_context(bound(address, 0))
            except OSError as problem:
                found[address] = errno.errorcode.get(problem.errno or 0, "EIO")
                continue
            dialer = stack.enter_context(socket.socket(listener.family))
            dialer.setblocking(False)
            error = dialer.connect_ex(listener.getsockname())
            if error == errno.EINPROGRESS:
                found[address] = "ETIMEDOUT"
                selector.register(dialer, selectors.EVENT_WRITE, address)
            else:
                found[address] = _name(error)
        until_s = time.monotonic() + wait_s
        while selector.get_map():
            # A host that is busy may come here late: what is there by now counts all the same.
            late = time.monotonic() >= until_s
            ready = selector.select(max(0.0, until_s - time.monotonic()))
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                found[key.data] = _name(key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                selector.unregister(key.fileobj)
            if late and not ready:
                break
    return found


def _name(error: int) -> str | None:
    return None if not error or error in _NO_PORT else errno.errorcode.get(error, "EIO")

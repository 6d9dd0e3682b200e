"""Prove with traffic who reaches whom: a listener that lives for seconds, and a dialer.

    dialer    {"token": ..., "from": host}\\n          with echoes, skip_s and count_s, or without
    listener  {"host": ...}\\n                          closes at once for another token
    both      a byte there and back, `echoes` times
    dialer    bytes, for a moment, then the end of its stream
    listener  {"bytes": ..., "time_s": ...}\\n          what came in the window

The window opens with the first piece that comes skip_s after the very first, when the bucket of a
shaped link is empty and TCP is at its speed, and is open for count_s.

Only what knows the token of this very pass is answered, and nothing of either stays open when its
call is over.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from yoked.agent.server import Call

# The longest that a listener lives, whatever its controller does.
LISTEN_S = 60.0
_POLL_S = 0.1
# A peer that is silent for longer is gone.
_PATIENCE_S = 5.0
_LONGEST_LINE_BYTES = 1000
_PIECE_BYTES = 65_536
# A fast link is not to wait for us: the largest read at once.
_READ_BYTES = 1 << 20
# Small, so that on a slow link little lies in buffers when the moment is over.
_BUFFER_BYTES = 262_144
# For a long send: no limit on what is under way, which a long link needs, and enough behind it
# that a busy sender may come 8 ms late at 1 Gbit/s.
_UNSENT_BYTES = 1 << 20
# linux/in.h and linux/in6.h; Python's socket has neither.
_LINUX_PATH_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (41, 24)}
_MOST_AT_ONCE = 64


def answer_listen(call: Call) -> dict[str, Any]:
    """Listen on all addresses, IPv4 and IPv6, until the call is cancelled.

    args: token; host, this host's name; limit_s. The port is sent as a part at once; the answer
    has the names of the hosts that came.
    """
    limit_s = min(float(call.args.get("limit_s", LISTEN_S)), LISTEN_S)
    deadline_s = time.monotonic() + limit_s
    guests = _Guests(call)
    with open_listener() as listener, ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        listener.settimeout(_POLL_S)
        call.send({"port": listener.getsockname()[1]})
        while time.monotonic() < deadline_s and not call.cancelled.is_set():
            try:
                connection = listener.accept()[0]
            # Python 3.9 has two of them.
            except (TimeoutError, socket.timeout, ConnectionAbortedError):  # noqa: UP041 - two until Python 3.10
                continue
            guests.add(connection)
            pool.submit(guests.welcome, connection)
        guests.dismiss()
    return {"came": sorted(guests.came)}


def answer_dial(call: Call) -> list[dict[str, Any]]:
    """Dial all targets at once.

    args: token; host, this host's name; targets [{address, port}]; wait_s for each connection;
    send_s and send_bytes: how long and how much to send at most, 0: nothing, send_bytes null: any;
    echoes; window {skip_s, count_s}, without which all counts but the first piece.
    For each target, in their order: ok, answered_by, error (a name such as ECONNREFUSED, or null),
    error_text, rtt_s, echo_s (the time of each echo), goodput_bytes_per_s (null where too little
    was sent to tell), path_mtu_bytes (what the kernel has found out by then, or null).
    """
    args, targets = call.args, call.args["targets"]
    echoes = int(args.get("echoes", 0))
    hello = {
        "token": args["token"],
        "from": args["host"],
        "echoes": echoes,
        **args.get("window", {}),
    }
    limits = _Limits(args["wait_s"], args.get("send_s", 0.0), args.get("send_bytes", 0), echoes)
    with ThreadPoolExecutor(max(1, min(len(targets), _MOST_AT_ONCE))) as pool:
        return list(pool.map(lambda target: _dial(target, hello, limits), targets))


class _Limits(NamedTuple):
    wait_s: float
    send_s: float
    send_bytes: int | None
    echoes: int


def open_listener() -> socket.socket:
    """A listener at a free port of all addresses, of IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_MOST_AT_ONCE
            )
    return socket.create_server(("", 0), backlog=_MOST_AT_ONCE)


class _Guests:
    """Those who came to a listener. came: names of the ones that knew the token."""

    def __init__(self, call: Call) -> None:
        self.came: set[str] = set()
        self._call = call
        self._open: set[socket.socket] = set()

    def add(self, connection: socket.socket) -> None:
        """Know of a connection before its turn comes."""
        self._open.add(connection)

    def welcome(self, connection: socket.socket) -> None:
        """Answer one dialer; whatever it does ends with it."""
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(_PATIENCE_S)
            self._converse(connection)
        self._open.discard(connection)

    def dismiss(self) -> None:
        """End the conversations that go on."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: socket.socket) -> None:
        hello = _read_line(connection)
        if not hmac.compare_digest(str(hello["token"]), str(self._call.args["token"])):
            return
        _write_line(connection, {"host": self._call.args["host"]})
        self.came.add(str(hello["from"]))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(hello.get("echoes", 0))):
            connection.sendall(connection.recv(1))
        received_bytes, time_s = _count(
            connection, float(hello.get("skip_s", 0.0)), float(hello.get("count_s", math.inf))
        )
        _write_line(connection, {"bytes": received_bytes, "time_s": time_s})


def _count(connection: socket.socket, skip_s: float, count_s: float) -> tuple[int, float]:
    """Bytes that came in the window, and the time that they took, in seconds."""
    first_s: float | None = None
    opened_s: float | None = None
    last_s = 0.0
    received_bytes = 0
    for now_s, size_bytes in _arrivals(connection):
        first_s = now_s if first_s is None else first_s
        if opened_s is None:
            if now_s - first_s >= skip_s:
                opened_s = last_s = now_s
        elif now_s - opened_s <= count_s:
            received_bytes += size_bytes
            last_s = now_s
    return received_bytes, 0.0 if opened_s is None else last_s - opened_s


def _arrivals(connection: socket.socket) -> Iterator[tuple[float, int]]:
    """When each piece came, and its size, to the end of the stream."""
    buffer = bytearray(_READ_BYTES)
    while size_bytes := connection.recv_into(buffer):
        yield time.perf_counter(), size_bytes


def _dial(target: dict[str, Any], hello: dict[str, str], limits: _Limits) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ok": False,
        "answered_by": None,
        "error": None,
        "error_text": None,
        "rtt_s": None,
        "echo_s": [],
        "goodput_bytes_per_s": None,
        "path_mtu_bytes": None,
    }
    try:
        _exchange((target["address"], target["port"]), hello, limits, result)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        result["error"], result["error_text"] = _name_of(problem)
        result["ok"] = False
    return result


def _exchange(
    place: tuple[str, int], hello: dict[str, str], limits: _Limits, result: dict[str, Any]
) -> None:
    """Fill in what one conversation tells. Raises what kept it from its end."""
    began_s = time.perf_counter()
    with socket.create_connection(place, timeout=limits.wait_s) as connection:
        connected_s = time.perf_counter() - began_s
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_little_unsent(connection, bounded=limits.send_bytes is not None)
        began_s = time.perf_counter()
        _write_line(connection, hello)
        result["answered_by"] = _read_line(connection)["host"]
        # The handshake may have lost a packet, or waited for a neighbour's address.
        result["rtt_s"] = min(connected_s, time.perf_counter() - began_s)
        connection.settimeout(_PATIENCE_S)
        result["echo_s"] = [_echo_s(connection) for _ in range(limits.echoes)]
        _send(connection, limits)
        connection.shutdown(socket.SHUT_WR)
        told = _read_line(connection)
        result["path_mtu_bytes"] = _path_mtu_bytes(connection)
    if told["bytes"] and told["time_s"] > 0:
        result["goodput_bytes_per_s"] = told["bytes"] / told["time_s"]
    result["ok"] = True


def _keep_little_unsent(connection: socket.socket, *, bounded: bool) -> None:
    """Have little lie in buffers. bounded: little under way too."""
    unsent = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if not bounded and unsent is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, unsent, _UNSENT_BYTES)
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def _echo_s(connection: socket.socket) -> float:
    began_s = time.perf_counter()
    connection.sendall(b"?")
    if not connection.recv(1):
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return time.perf_counter() - began_s


def _send(connection: socket.socket, limits: _Limits) -> None:
    # Not zeros: a tunnel that compresses would be faster than it is.
    piece = os.urandom(_PIECE_BYTES)
    most_bytes = math.inf if limits.send_bytes is None else limits.send_bytes
    deadline_s = time.perf_counter() + limits.send_s
    sent_bytes = 0
    while sent_bytes < most_bytes and time.perf_counter() < deadline_s:
        connection.sendall(piece)
        sent_bytes += len(piece)


def _path_mtu_bytes(connection: socket.socket) -> int | None:
    """The largest packet that the kernel sends on this way unfragmented; None: it does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return connection.getsockopt(*_LINUX_PATH_MTU[connection.family])
    except (OSError, KeyError):
        return None


def _write_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read_line(connection: socket.socket) -> Any:
    """The next line. Byte by byte, so that nothing behind it is taken; lines are short."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        line += byte
        if len(line) > _LONGEST_LINE_BYTES:
            raise ValueError("what answers there does not speak as we do")
    return json.loads(line)


def _name_of(problem: Exception) -> tuple[str, str]:
    """A failure as (its symbol, its words)."""
    # Python 3.9 has two of them.
    if isinstance(problem, (TimeoutError, socket.timeout)):
        return "ETIMEDOUT", os.strerror(errno.ETIMEDOUT)
    if isinstance(problem, OSError) and problem.errno is not None:
        return errno.errorcode.get(problem.errno, "EIO"), os.strerror(problem.errno)
    return "EPROTO", f"what answers there does not speak as we do: {problem}"

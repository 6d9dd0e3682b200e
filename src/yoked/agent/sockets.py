"""Prove with traffic who reaches whom: a listener that lives for seconds, and a dialer.

    dialer    {"token": ..., "from": host}\\n          with echoes, skip_s and count_s, or without
    listener  {"host": ...}\\n                          closes at once for another token
    both      a byte there and back, `echoes` times
    both      nothing for rest_s, then a byte there and back, where that is asked for
    dialer    bytes, for a moment, then the end of its stream
    listener  {"bytes": ..., "time_s": ..., "all_bytes": ...}\\n    in the window, and at all

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
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from yoked.agent.counters import read_cards, unsent_segments
from yoked.agent.listeners import leave_out
from yoked.agent.listening import MOST_AT_ONCE, accepted, open_listeners
from yoked.agent.routes import source_of
from yoked.agent.server import Call
from yoked.errors import HostError

# The longest that a listener lives, whatever its controller does.
LISTEN_S = 60.0
_ARRIVAL_POLL_S = 0.01
# A peer that is silent for longer is gone.
_PATIENCE_S = 5.0
_LONGEST_LINE_BYTES = 1000
# No time at all would mean not to wait at all.
_LEAST_S = 0.001
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
# Asks how much of what was sent is not yet confirmed: SIOCOUTQ of linux/sockios.h, and SO_NWRITE
# of macOS's sys/socket.h.
_LINUX_UNCONFIRMED, _MACOS_UNCONFIRMED = 0x5411, 0x1024
# In struct tcp_info of linux/tcp.h: where it counts the packets sent again, and all with data.
_RESENT_AT, _SEGMENTS_AT = 100, 156
# Free on nearly every host, and below what kernels pick from: 32,768 on Linux, 49,152 on macOS.
_LOW_PORTS = (20_000, 32_000)


def answer_listen(call: Call) -> dict[str, Any]:
    """Listen on each address of this host, IPv4 and IPv6, until the call is cancelled.

    args: token; host, this host's name; limit_s; more, a list of ports to listen on as well, 0 for
    any. At once comes a part with port and more: the ports, null where one is taken. The answer
    has the names of the hosts that came.
    """
    read_cards(again=True)
    limit_s = min(float(call.args.get("limit_s", LISTEN_S)), LISTEN_S)
    deadline_s = time.monotonic() + limit_s
    guests = _Guests(call)
    with contextlib.ExitStack() as stack:
        listeners: list[socket.socket] = []
        ports: list[int | None] = []
        for group in [_open_any(), *map(_open_or_none, call.args.get("more") or ())]:
            ports.append(group[0].getsockname()[1] if group else None)
            for listener in group or ():
                listeners.append(stack.enter_context(listener))
                leave_out(listener)
        pool = stack.enter_context(ThreadPoolExecutor(MOST_AT_ONCE))
        call.send({"port": ports[0], "more": ports[1:]})
        while time.monotonic() < deadline_s and not call.cancelled.is_set():
            for connection in accepted(listeners):
                guests.add(connection)
                pool.submit(guests.welcome, connection)
        guests.dismiss()
    return {"came": sorted(guests.came)}


def _open_any() -> list[socket.socket]:
    """Listeners at a port that the kernel picks. Raises HostError where it has none to give."""
    try:
        return open_listeners()
    except OSError as problem:
        raise HostError(
            f"the kernel has no port to listen at: {problem.strerror}",
            fix="yoked doctor    says from which it picks, and how many are taken",
        ) from problem


def _open_or_none(port: int) -> list[socket.socket] | None:
    """Listeners at a port; None: it is taken, or not for us."""
    try:
        return open_listeners(port)
    except OSError:
        return None


def answer_dial(call: Call) -> list[dict[str, Any]]:
    """Dial all targets at once.

    args: token; host, this host's name; targets [{address, port}]; wait_s for each connection;
    send_s and send_bytes: how long and how much to send at most, 0: nothing, send_bytes null: any;
    echoes; window {skip_s, count_s}, without which all counts but the first piece; patience_s, how
    long a silence may be once it is connected; rest_s, for how long nothing is sent before the last
    echo.
    For each target, in their order: ok, answered_by, error (a name such as ECONNREFUSED, or null),
    error_text, rtt_s, echo_s (the time of each echo), goodput_bytes_per_s (null where too little
    was sent to tell), path_mtu_bytes (what the kernel has found out by then, or null),
    mss_bytes (of data in one packet, of the end that has less),
    resent (the part of our packets that was sent again; null: the kernel does not tell),
    source_address (ours on this way; null: there is no way), took_s (until it was connected, or
    that was given up), connected, arrived_bytes (of what was sent; as far as they were confirmed,
    where the conversation did not come to its end), unsent (where there was silence, whether this
    host's own kernel kept packets back meanwhile; null: it does not tell, or there was none).
    """
    args, targets = call.args, call.args["targets"]
    echoes, rest_s = int(args.get("echoes", 0)), float(args.get("rest_s", 0.0))
    hello = {
        "token": args["token"],
        "from": args["host"],
        "echoes": echoes + bool(rest_s),
        **args.get("window", {}),
    }
    limits = _Limits(
        wait_s=args["wait_s"],
        send_s=args.get("send_s", 0.0),
        send_bytes=args.get("send_bytes", 0),
        echoes=echoes,
        patience_s=args.get("patience_s", _PATIENCE_S),
        rest_s=rest_s,
    )
    before = unsent_segments()
    with ThreadPoolExecutor(max(1, min(len(targets), MOST_AT_ONCE))) as pool:
        found = list(pool.map(lambda target: _dial(target, hello, limits), targets))
    after = unsent_segments()
    kept_back = None if before is None or after is None else after > before
    for each in found:
        each["unsent"] = kept_back if each["error"] == "ETIMEDOUT" else None
    return found


class _Limits(NamedTuple):
    wait_s: float
    send_s: float
    send_bytes: int | None
    echoes: int
    patience_s: float
    rest_s: float


class _Guests:
    """Those who came to a listener. came: names of the ones that knew the token."""

    def __init__(self, call: Call) -> None:
        self.came: set[str] = set()
        self._call = call
        self._lock = threading.Lock()
        # In the order in which they came; those who have shown the token are no strangers.
        self._open: dict[socket.socket, None] = {}
        self._strangers: dict[socket.socket, None] = {}

    def add(self, connection: socket.socket) -> None:
        """Know of a connection before its turn comes. Where too many are held, the stranger who
        has said nothing for longest goes.
        """
        with self._lock:
            if len(self._open) >= MOST_AT_ONCE and self._strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _hang_up(oldest)
            self._open[connection] = self._strangers[connection] = None

    def welcome(self, connection: socket.socket) -> None:
        """Answer one dialer; whatever it does ends with it."""
        try:
            with (
                connection,
                contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError),
            ):
                self._converse(connection)
        finally:
            with self._lock:
                self._open.pop(connection, None)
                self._strangers.pop(connection, None)

    def dismiss(self) -> None:
        """End the conversations that go on."""
        with self._lock:
            for connection in self._open:
                _hang_up(connection)

    def _converse(self, connection: socket.socket) -> None:
        hello = _read_line(connection, time.monotonic() + _PATIENCE_S)
        told, own = str(hello["token"]).encode(), str(self._call.args["token"]).encode()
        if not hmac.compare_digest(told, own):
            return
        with self._lock:
            self._strangers.pop(connection, None)
        connection.settimeout(_PATIENCE_S)
        _write_line(connection, {"host": self._call.args["host"]})
        self.came.add(str(hello["from"]))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(hello.get("echoes", 0))):
            connection.sendall(connection.recv(1))
        counted = _count(
            connection, float(hello.get("skip_s", 0.0)), float(hello.get("count_s", math.inf))
        )
        _write_line(connection, {**counted._asdict(), "mss_bytes": _mss_bytes(connection)})


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Counted(NamedTuple):
    """What came in the window, the time that it took, and what came at all."""

    bytes: int
    time_s: float
    all_bytes: int


def _count(connection: socket.socket, skip_s: float, count_s: float) -> _Counted:
    """Read to the end of the stream."""
    first_s: float | None = None
    opened_s: float | None = None
    last_s = 0.0
    received_bytes = all_bytes = 0
    for now_s, size_bytes in _arrivals(connection):
        all_bytes += size_bytes
        first_s = now_s if first_s is None else first_s
        if opened_s is None:
            if now_s - first_s >= skip_s:
                opened_s = last_s = now_s
        elif now_s - opened_s <= count_s:
            received_bytes += size_bytes
            last_s = now_s
    return _Counted(received_bytes, 0.0 if opened_s is None else last_s - opened_s, all_bytes)


def _arrivals(connection: socket.socket) -> Iterator[tuple[float, int]]:
    """When each piece came, and its size, to the end of the stream."""
    buffer = bytearray(_READ_BYTES)
    while size_bytes := connection.recv_into(buffer):
        yield time.perf_counter(), size_bytes


def _dial(target: dict[str, Any], hello: dict[str, str], limits: _Limits) -> dict[str, Any]:
    names = ("answered_by", "error", "error_text", "rtt_s", "goodput_bytes_per_s",
             "path_mtu_bytes", "mss_bytes", "resent", "source_address", "took_s")  # fmt: skip
    result: dict[str, Any] = {
        **dict.fromkeys(names), "ok": False, "echo_s": [], "connected": False, "arrived_bytes": 0,
    }  # fmt: skip
    began_s = time.perf_counter()
    try:
        # Asked beforehand: a connection that fails does not tell. Nor does it need an answer: a
        # kernel without a port for this question may have one for the connection.
        with contextlib.suppress(OSError):
            result["source_address"] = source_of(target["address"])
        with _connect((target["address"], target["port"]), limits.wait_s) as connection:
            result["connected"], result["took_s"] = True, _since(began_s)
            _converse(connection, hello, limits, result)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        result["error"], result["error_text"] = _name_of(problem)
        result["ok"] = False
        result["took_s"] = result["took_s"] or _since(began_s)
    return result


def _connect(address: tuple[str, int], wait_s: float) -> socket.socket:
    """Connect as a rank would, from a port that the kernel picks.

    Where it has none left, the way is tried from another port, so that one trouble does not hide
    the next: what fails there is raised, and otherwise that no port was left.
    """
    try:
        return socket.create_connection(address, wait_s)
    except OSError as problem:
        if problem.errno != errno.EADDRNOTAVAIL:
            raise
        own = ("", random.randint(*_LOW_PORTS))
        try:
            socket.create_connection(address, wait_s, source_address=own).close()
        except OSError as next_problem:
            if next_problem.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
        raise


def _converse(
    connection: socket.socket, hello: dict[str, str], limits: _Limits, result: dict[str, Any]
) -> None:
    """Fill in what one conversation tells. Raises what kept it from its end."""
    connection.settimeout(limits.patience_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _keep_little_unsent(connection, bounded=limits.send_bytes is not None)
    began_s = time.perf_counter()
    _write_line(connection, hello)
    result["answered_by"] = _read_line(connection)["host"]
    # The handshake may have lost a packet, or waited for a neighbour's address.
    result["rtt_s"] = min(result["took_s"], _since(began_s))
    result["echo_s"] = [_echo_s(connection) for _ in range(limits.echoes)]
    if limits.rest_s:
        _rest(connection, limits)
    sender = _Sender(connection)
    try:
        sender.send(limits)
        connection.shutdown(socket.SHUT_WR)
        sender.await_arrival(limits.patience_s)
        told = _read_line(connection)
    except OSError:
        result["arrived_bytes"] = sender.confirmed_bytes
        raise
    result["arrived_bytes"] = told["all_bytes"]
    result["path_mtu_bytes"] = _path_mtu_bytes(connection)
    sizes = [_mss_bytes(connection), told.get("mss_bytes")]
    result["mss_bytes"] = min(filter(None, sizes), default=None)
    result["resent"] = _resent(connection)
    if told["bytes"] and told["time_s"] > 0:
        result["goodput_bytes_per_s"] = told["bytes"] / told["time_s"]
    result["ok"] = True


def _since(began_s: float) -> float:
    """Seconds, to the microsecond: answers are to be short."""
    return round(time.perf_counter() - began_s, 6)


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
    return _since(began_s)


def _rest(connection: socket.socket, limits: _Limits) -> None:
    """Send nothing for a while, then ask again. Raises OSError as soon as it is ended."""
    connection.settimeout(limits.rest_s)
    # Before Python 3.10 it is no TimeoutError.
    with contextlib.suppress(socket.timeout):
        if not connection.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    connection.settimeout(limits.patience_s)
    _echo_s(connection)


class _Sender:
    """Sends for a moment, and knows how much of it the other side has."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sent_bytes = 0

    def send(self, limits: _Limits) -> None:
        """Send as much, for as long, as the limits say."""
        # Not zeros: a tunnel that compresses would be faster than it is.
        piece = memoryview(os.urandom(_PIECE_BYTES))
        most_bytes = math.inf if limits.send_bytes is None else limits.send_bytes
        deadline_s = time.perf_counter() + limits.send_s
        while self._sent_bytes < most_bytes and time.perf_counter() < deadline_s:
            self._sent_bytes += self._connection.send(piece[self._sent_bytes % _PIECE_BYTES :])

    def await_arrival(self, patience_s: float) -> None:
        """Return when the other side has all, or nothing more came to it for patience_s.

        A slow link is not to be taken for one that lets nothing through.
        """
        seen_bytes, since_s = -1, time.perf_counter()
        while time.perf_counter() - since_s < patience_s:
            arrived_bytes = self.confirmed_bytes
            if arrived_bytes >= self._sent_bytes or not arrived_bytes:
                return
            if arrived_bytes > seen_bytes:
                seen_bytes, since_s = arrived_bytes, time.perf_counter()
            time.sleep(_ARRIVAL_POLL_S)

    @property
    def confirmed_bytes(self) -> int:
        """Those that its kernel has said to have; 0 where ours does not tell."""
        waiting = _unconfirmed_bytes(self._connection)
        return 0 if waiting is None else max(0, self._sent_bytes - waiting)


def _unconfirmed_bytes(connection: socket.socket) -> int | None:
    try:
        if sys.platform == "darwin":
            return connection.getsockopt(socket.SOL_SOCKET, _MACOS_UNCONFIRMED)
        import fcntl

        told = fcntl.ioctl(connection.fileno(), _LINUX_UNCONFIRMED, b"\0" * 4)
    except OSError:
        return None
    return int(struct.unpack("=i", told)[0])


def _path_mtu_bytes(connection: socket.socket) -> int | None:
    """The largest packet that the kernel sends on this way unfragmented; None: it does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return connection.getsockopt(*_LINUX_PATH_MTU[connection.family])
    except (OSError, KeyError):
        return None


def _mss_bytes(connection: socket.socket) -> int | None:
    """How much of the program's data fits into one packet, as both ends have agreed."""
    with contextlib.suppress(OSError):
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    return None


def _resent(connection: socket.socket) -> float | None:
    """The part of the packets with data that were sent again; None: the kernel does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SEGMENTS_AT + 4)
        (resent,) = struct.unpack_from("=I", told, _RESENT_AT)
        (all_of_them,) = struct.unpack_from("=I", told, _SEGMENTS_AT)
    except (OSError, struct.error):  # a kernel before 4.6 does not count them
        return None
    return round(min(1.0, resent / all_of_them), 5) if all_of_them else None


def _write_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read_line(connection: socket.socket, until_s: float | None = None) -> Any:
    """The next line. Byte by byte, so that nothing behind it is taken; lines are short.

    until_s: by the monotonic clock; a byte now and then does not put it off.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if until_s is not None:
            connection.settimeout(max(_LEAST_S, until_s - time.monotonic()))
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

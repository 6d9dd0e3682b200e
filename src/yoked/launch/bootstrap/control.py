"""What the hosts of a run tell each other: each says a notice, all hear all notices, as events.

Node 0 hears every host over a connection of its own (`yoked.channel`: mutual TLS, certificates of
this launch), and tells each what the others said. The same connections carry the store of torch,
which a process on node 0 serves on loopback: every other host's end does so for its own ranks. A
host that stops renewing its notice is silent; one whose connection ended is gone; when that is node
0's, so is everybody.

All of it happens in one thread. A run on one host has none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import JobFolder
from yoked.channel.carry import Ends
from yoked.channel.dial import UnreachedError, dial, port_of, serve_store
from yoked.channel.frames import FrameError
from yoked.channel.hub import Hub
from yoked.channel.names import LOOPBACK
from yoked.channel.peer import Peer
from yoked.channel.tls import client_context, node_name, server_context
from yoked.core.schema import decode
from yoked.diagnosis.vitals import Vitals
from yoked.errors import HostError
from yoked.launch.bootstrap.coordinator import Beat, CutOff, Event, Joined, Left
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.notice import CONNECT_S, Notice
from yoked.launch.bootstrap.watch import Told

_PERIOD_S = 0.2
# Once a host has reported it has nothing left to do but to hear what was decided.
_HASTE_S = 0.05
# Connections to node 0 that were not admitted, for whoever asks after the run.
REFUSED_NAME = "refused.json"


class Control:
    """This host's seat among the hosts. `close` ends its thread.

    post: takes what happens, from a thread of its own: Joined, Beat, Left, CutOff, Told.
    """

    def __init__(self, job: Job, post: Callable[[Event | Told], None]) -> None:
        self.job = job
        self.post = post
        # Where ranks of this host reach the store, on its loopback. Node 0 is told by who serves
        # it; on other hosts it is where its bytes come from node 0.
        self.store_port: int | None = None
        self._own = Notice()
        self._closing = False
        self._opened = False
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._seat = _FirstSeat(self) if job.node_rank == 0 else _OtherSeat(self)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def say(self, notice: Notice) -> None:
        """What this host says from now on; the word leaves at once."""
        if notice != self._own:
            self._own = notice
            self.hurry()

    def tell(self, vitals: Vitals) -> None:
        """Have the others know how this host's ranks are."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._seat.send_vitals, self.job.node_rank, vitals)

    def close(self, timeout_s: float = 1.0) -> None:
        """Send what is unsent and end; a connection that hangs is left behind."""
        self._closing = True
        self.hurry()
        # One that still dials node 0 has nothing to send.
        self._thread.join(timeout_s if self._opened else 0.0)

    def hurry(self) -> None:
        """Have the thread look round at once."""
        # The loop is closed when the thread has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._sit())
        except HostError as problem:
            self._give_up(problem)
        except Exception as problem:  # noqa: BLE001 - a run that nobody watches is trouble at once
            self._give_up(_broken(self.job, problem))
        finally:
            self._loop.close()

    async def _sit(self) -> None:
        try:
            await self._seat.open()
            self._opened = True
            await self._talk()
        finally:
            await self._seat.close()

    async def _talk(self) -> None:
        while True:
            self._wake.clear()
            # In this order: what is said last leaves before the end.
            closing, own = self._closing, self._own
            self._seat.tell(own)
            if closing:
                return
            period_s = _PERIOD_S if own.report is None else _HASTE_S
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), period_s)
            self._seat.check()

    def _give_up(self, problem: HostError) -> None:
        if not self._closing:
            self.post(CutOff(problem))


class _FirstSeat:
    """Node 0: hears every host and tells each what the others said; leads ranks to the store."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._job = control.job
        self._own = Notice()
        self._notices: dict[int, Notice] = {}
        self._gone: set[int] = set()
        self._hub: Hub | None = None
        self._serving: asyncio.Task[None] | None = None
        # Words heard by node: the others see by it that a host lives.
        self._beats = dict.fromkeys(range(len(self._job.nodes)), 0)
        self._noted = (0, 0)
        self._bad_words = 0

    async def open(self) -> None:
        job = self._job
        listener = _listening(job)
        self._hub = Hub(
            _context(server_context, job),
            job.launch_id,
            len(job.nodes),
            on_word=self._on_word,
            # It learns at once that it was admitted.
            on_peer=self._send,
            on_end=self._on_end,
            connect=self._to_store,
        )
        self._serving = asyncio.ensure_future(self._hub.serve(listener))
        self._control.post(Joined())

    def tell(self, own: Notice) -> None:
        """Send the notices of all to all."""
        self._own = own
        self._beats[0] += 1
        assert self._hub is not None
        for peer in self._hub.peers.values():
            self._send(peer)

    def send_vitals(self, node: int, vitals: Vitals) -> None:
        """Tell all hosts but that one itself how its ranks are."""
        for peer in self._hub.peers.values() if self._hub is not None else ():
            if peer.node != node:
                _send_vitals(peer, node, vitals)

    def check(self) -> None:
        """Note refused connections where a person finds them. Raises what ended the listener."""
        assert self._hub is not None
        if self._serving is not None and self._serving.done():
            self._serving.result()
        counts = (sum(self._hub.refused.values()), self._bad_words)
        if counts == self._noted:
            return
        self._noted = counts
        # A full disk must not end the run.
        with contextlib.suppress(OSError):
            JobFolder(self._job.folder).write(
                REFUSED_NAME,
                {
                    "connections": counts[0],
                    "words": self._bad_words,
                    "addresses": dict(self._hub.refused.most_common(16)),
                    "last": self._hub.last_refusal,
                },
            )

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._hub is not None:
            await self._hub.close()

    def _on_word(self, node: int, word: dict[str, Any]) -> None:
        if "vitals" in word:
            # Of itself alone.
            if (vitals := _vitals(word, node)) is None:
                self._bad_words += 1
                return
            self._control.post(Told(node, vitals))
            self.send_vitals(node, vitals)
            return
        try:
            notice = decode(Notice, word["notices"][str(node)])
        except (ValueError, KeyError, TypeError):
            # It may be of another yoked; silence, if it goes on, tells.
            self._bad_words += 1
            return
        # Node 0 alone decides.
        notice = replace(notice, decision=None)
        self._beats[node] += 1
        self._gone.discard(node)
        if notice != self._notices.get(node):
            # The other hosts wait for it.
            self._notices[node] = notice
            self._control.hurry()
        self._control.post(Beat(node, notice))

    def _on_end(self, node: int) -> None:
        self._gone.add(node)
        self._control.post(Left(node))

    def _send(self, peer: Peer) -> None:
        told = {str(node): notice for node, notice in {**self._notices, 0: self._own}.items()}
        told.pop(str(peer.node), None)
        _send_notices(peer, told, {"beats": self._beats, "gone": sorted(self._gone)})

    async def _to_store(self) -> Ends:
        # The ranks of another host may come before those of this one are started.
        while (port := self._control.store_port) is None:
            await asyncio.sleep(_HASTE_S)
        return await asyncio.open_connection(LOOPBACK, port)


class _OtherSeat:
    """Another node: tells node 0, hears from it, and serves its store on this host's loopback."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._job = control.job
        self._peer: Peer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._listening: asyncio.Task[None] | None = None
        self._joined = False
        self._beats: dict[int, Any] = {}
        self._gone: set[int] = set()

    async def open(self) -> None:
        job = self._job
        address, port = job.nodes[0].address, job.control_port
        context = _context(client_context, job)
        name = node_name(job.launch_id, 0)
        try:
            self._peer = await dial(address, port, name, context, CONNECT_S)
        except UnreachedError as problem:
            raise _unreached(job, str(problem)) from problem
        self._server = await serve_store(self._peer)
        self._control.store_port = port_of(self._server)
        self._listening = asyncio.ensure_future(self._peer.listen(self._on_word))
        self._listening.add_done_callback(lambda _: self._control.hurry())

    def tell(self, own: Notice) -> None:
        """Send this host's notice to node 0."""
        assert self._peer is not None
        _send_notices(self._peer, {str(self._job.node_rank): own}, {})

    def send_vitals(self, node: int, vitals: Vitals) -> None:
        """Tell node 0 how this host's ranks are."""
        if self._peer is not None:
            _send_vitals(self._peer, node, vitals)

    def check(self) -> None:
        """Raise HostError when the connection to node 0 has ended."""
        if self._listening is not None and self._listening.done():
            try:
                self._listening.result()
            except (OSError, FrameError) as problem:
                raise _lost(self._job, str(problem) or type(problem).__name__) from problem
            raise _lost(self._job, "it closed the connection")

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._peer is not None:
            await self._peer.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    def _on_word(self, word: dict[str, Any]) -> None:
        if "vitals" in word:
            for node in range(len(self._job.nodes)):
                vitals = _vitals(word, node)
                if node != self._job.node_rank and vitals is not None:
                    self._control.post(Told(node, vitals))
            return
        told, beats, gone = (word.get(name) for name in ("notices", "beats", "gone"))
        if not (isinstance(told, dict) and isinstance(beats, dict) and isinstance(gone, list)):
            return
        if not self._joined:
            # Before its first word, node 0 may still refuse this host's certificate.
            self._joined = True
            self._control.post(Joined())
        for node in range(len(self._job.nodes)):
            beat = beats.get(str(node))
            if node != self._job.node_rank and str(node) in told and beat != self._beats.get(node):
                self._beats[node] = beat
                self._gone.discard(node)
                with contextlib.suppress(ValueError):
                    self._control.post(Beat(node, decode(Notice, told[str(node)])))
            if node in gone and node not in self._gone:
                self._gone.add(node)
                self._control.post(Left(node))


def _send_notices(peer: Peer, notices: Mapping[str, Notice], more: Mapping[str, Any]) -> None:
    """Send notices by node, in brief where they are too long for one frame."""
    try:
        peer.send_word({**more, "notices": {node: asdict(one) for node, one in notices.items()}})
    except ValueError:
        brief = {node: asdict(one.brief()) for node, one in notices.items()}
        peer.send_word({**more, "notices": brief})


def _send_vitals(peer: Peer, node: int, vitals: Vitals) -> None:
    # One too long is left out: nothing is known then, which is no evidence.
    with contextlib.suppress(ValueError):
        peer.send_word({"vitals": {str(node): asdict(vitals)}})


def _vitals(word: Mapping[str, Any], node: int) -> Vitals | None:
    """What a word has of a host; None: nothing, or nothing that fits."""
    try:
        vitals: Vitals = decode(Vitals, word["vitals"][str(node)])
    except (ValueError, KeyError, TypeError):
        return None
    return vitals


def _context(make: Callable[[Path], ssl.SSLContext], job: Job) -> ssl.SSLContext:
    try:
        return make(job.folder)
    except OSError as problem:
        raise HostError(
            f"{job.node.host}: the certificate of this launch in {job.folder} cannot be used: "
            f"{problem}",
            fix="start the run again: it gets new ones",
        ) from problem


def _listening(job: Job) -> socket.socket:
    """The socket at which node 0 hears the others: one that was handed down, or a new one."""
    if job.control_fd is not None:
        return socket.socket(fileno=job.control_fd)
    address, port = job.nodes[0].address, job.control_port
    listener = socket.socket(_family(address))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise HostError(
            f"{job.node.host} cannot listen on {address} port {port}: {problem.strerror}.",
            fix=(
                "`Address already in use`: start the run again; it takes another port",
                f"`Cannot assign requested address`: yoked init finds {job.node.host}'s new one",
            ),
        ) from problem
    return listener


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]


def _unreached(job: Job, reason: str) -> HostError:
    return HostError(
        f"{job.node.host} did not reach {job.nodes[0].host} at {job.nodes[0].address} port "
        f"{job.control_port} within {CONNECT_S:.0f} s: {reason}.",
        fix=(
            f"`Connection refused`: logs/launcher.err on {job.nodes[0].host} says why",
            f"`no answer`: a firewall on {job.nodes[0].host} is the usual cause: yoked doctor",
            f"`No route to host`: {job.node.host} is not on the network of {job.nodes[0].address}",
            "`another program answered`: two hosts have this address: yoked doctor",
        ),
    )


def _lost(job: Job, problem: str) -> HostError:
    first = job.nodes[0].host
    return HostError(
        f"the connection to the launcher on {first} was lost: {problem}",
        fix=f"look at {first}: it was switched off or cut off, or its launcher killed",
    )


def _broken(job: Job, problem: Exception) -> HostError:
    return HostError(
        f"{job.node.host}: the connection between the hosts of this run ended by {problem!r}",
        fix="this is a bug in yoked: please report it with `yoked doctor --bundle`",
    )

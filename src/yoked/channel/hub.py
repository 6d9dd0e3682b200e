"""Node 0's end: admits the hosts of the launch, and nobody else.

A stranger's connection costs a place among the handshakes of his own address, for some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from yoked.channel.carry import Ends
from yoked.channel.frames import FrameError
from yoked.channel.peer import Peer
from yoked.channel.tls import peer_node

HANDSHAKE_S = 10.0
# Connections that have not shown who they are yet: of one address, and of all.
MOST_OF_ONE_ADDRESS = 8
MOST_UNPROVED = 128
# Of a whole line of text, which no reader here asks for; frames are read by their length.
_READER_LIMIT_BYTES = 256 << 10


class Hub:
    """All hosts' connections to node 0.

    on_word: called with (node, word). on_end: called with a node whose connection ended.
    connect: what a stream that a host begins leads to.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        launch_id: str,
        nodes: int,
        *,
        on_word: Callable[[int, dict[str, Any]], None],
        on_peer: Callable[[Peer], object],
        on_end: Callable[[int], None],
        connect: Callable[[], Awaitable[Ends]],
    ) -> None:
        self._context = context
        self._launch_id = launch_id
        self._nodes = nodes
        self._on_word, self._on_peer, self._on_end = on_word, on_peer, on_end
        self._connect = connect
        self._unproved: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self.peers: dict[int, Peer] = {}
        # Connections that were refused, by address; and why the last one was.
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""

    async def serve(self, listener: socket.socket) -> None:
        """Admit connections until it is cancelled. The listener is this hub's from now on."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError:
                    # No descriptor is left, or it was gone before it was taken: others may come.
                    await asyncio.sleep(0.1)
                    continue
                self._receive(connection, str(address[0]))
        finally:
            listener.close()

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in list(self.peers.values()):
            await peer.close()

    def _receive(self, connection: socket.socket, address: str) -> None:
        of_all = sum(self._unproved.values())
        if self._unproved[address] >= MOST_OF_ONE_ADDRESS or of_all >= MOST_UNPROVED:
            connection.close()
            self._refuse(address, "too many connections that do not say who they are")
            return
        self._unproved[address] += 1
        task = asyncio.ensure_future(self._admit(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket, address: str) -> None:
        try:
            peer = await self._prove(connection)
        except (TimeoutError, OSError) as problem:
            connection.close()
            self._refuse(address, f"no certificate of this launch: {problem}")
            return
        finally:
            self._unproved[address] -= 1
            if not self._unproved[address]:
                del self._unproved[address]
        if peer is None:
            self._refuse(address, "its certificate names no other host of this launch")
            return
        if former := self.peers.pop(peer.node, None):
            await former.close()
        self.peers[peer.node] = peer
        self._on_peer(peer)
        try:
            await peer.listen(lambda word: self._on_word(peer.node, word))
        except FrameError as problem:
            self._refuse(address, str(problem))
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as problem:
            # A word that its reader was not made for: the peer is closed and counted, like one
            # whose frame does not decode.
            self._refuse(address, f"a word that cannot be read: {problem!r}")
        except OSError:
            # The network, or the host, is gone: its end says so.
            pass
        finally:
            if self.peers.get(peer.node) is peer:
                del self.peers[peer.node]
                self._on_end(peer.node)

    async def _prove(self, connection: socket.socket) -> Peer | None:
        """The host at the other end; None: it is none that may connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READER_LIMIT_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        send_at_once(connection)
        node = peer_node(writer.get_extra_info("ssl_object"), self._launch_id)
        if node is None or not 0 < node < self._nodes:
            transport.abort()
            return None
        return Peer(node, reader, writer, self._connect)

    def _refuse(self, address: str, why: str) -> None:
        # A stranger with many addresses must not take memory: they count as one from here on.
        known = address in self.refused or len(self.refused) < MOST_UNPROVED
        self.refused[address if known else "other addresses"] += 1
        self.last_refusal = f"{address}: {why}"


def send_at_once(connection: socket.socket) -> None:
    """Send small frames at once."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

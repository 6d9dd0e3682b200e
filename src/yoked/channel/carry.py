"""Carry TCP connections over a connection between hosts, as numbered streams of bytes.

Ranks connect to the store on their own host's loopback; each such connection is a stream, at
whose other end node 0 connects to the store itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from yoked.channel.frames import BYTES_LIMIT_BYTES

# A rank opens a connection for each store client; a program with more than these is in error.
MOST_STREAMS = 512
# Bytes that wait for a reader on this host: torch's store and ranks read at once. More is a
# reader that stopped, and must not take this process's memory.
MOST_WAITING_BYTES = 64 << 20

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Carrier:
    """The streams of one connection between hosts.

    send: sends bytes of a stream to the other host; none: its end. connect: connects to what a
    stream that the other host begins is for; None: it may begin none.
    """

    def __init__(
        self,
        send: Callable[[int, bytes], Awaitable[None]],
        connect: Callable[[], Awaitable[Ends]] | None,
    ) -> None:
        self._send = send
        self._connect = connect
        self._last = 0
        self._open: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection that was made on this host, to its end."""
        if len(self._open) >= MOST_STREAMS:
            writer.close()
            return
        self._last += 1
        stream = self._open[self._last] = _Stream(self._last)

        async def ready() -> Ends:
            return reader, writer

        await self._carry(stream, ready)

    async def take(self, number: int, payload: bytes) -> None:
        """Take in what the other host sent of a stream."""
        stream = self._open.get(number)
        if stream is None:
            # An end, or the rest of a stream that has ended here, begins nothing.
            if self._connect is None or number <= self._last or not payload:
                return
            self._last = number
            if len(self._open) >= MOST_STREAMS:
                await self._send(number, b"")
                return
            stream = self._open[number] = _Stream(number)
            task = asyncio.ensure_future(self._carry(stream, self._connect))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        stream.put(payload)

    async def close(self) -> None:
        """End all streams."""
        for stream in list(self._open.values()):
            stream.put(b"")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, stream: _Stream, connect: Callable[[], Awaitable[Ends]]) -> None:
        writer: asyncio.StreamWriter | None = None
        sending: asyncio.Future[None] | None = None
        try:
            reader, writer = await connect()
            sending = asyncio.ensure_future(self._send_all(stream.number, reader))
            # Whichever end closes first, the other follows.
            sending.add_done_callback(lambda _: stream.put(b""))
            while payload := await stream.next():
                writer.write(payload)
                await writer.drain()
        except OSError:
            # The store, or the rank, is gone: the other side hears of it.
            pass
        finally:
            del self._open[stream.number]
            if sending is not None:
                sending.cancel()
            if writer is not None:
                writer.close()
            with contextlib.suppress(OSError):
                await self._send(stream.number, b"")

    async def _send_all(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while payload := await reader.read(BYTES_LIMIT_BYTES):
                await self._send(number, payload)


class _Stream:
    """Bytes that came from the other host and wait for their reader on this one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0

    def put(self, payload: bytes) -> None:
        self._waiting_bytes += len(payload)
        self._waiting.put_nowait(payload if self._waiting_bytes <= MOST_WAITING_BYTES else b"")

    async def next(self) -> bytes:
        payload = await self._waiting.get()
        self._waiting_bytes -= len(payload)
        return payload

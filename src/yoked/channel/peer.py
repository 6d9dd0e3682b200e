"""One connection to another host, once both sides have shown who they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from yoked.channel.carry import Carrier, Ends
from yoked.channel.frames import (
    WORD,
    decode_word,
    encode_bytes,
    encode_word,
    read_frame,
)

# A peer that does not read: the next word replaces this one, so it need not be kept for it.
_MOST_UNSENT_BYTES = 1 << 20


class Peer:
    """A host at the other end. node: its number in the launch, as its certificate says.

    connect: what a stream that it begins leads to; None: it may begin none.
    """

    def __init__(
        self,
        node: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connect: Callable[[], Awaitable[Ends]] | None = None,
    ) -> None:
        self.node = node
        self._reader = reader
        self._writer = writer
        self.streams = Carrier(self.send_bytes, connect)

    def send_word(self, message: Mapping[str, Any]) -> bool:
        """Send a JSON object; False: the peer reads too slowly, and this one was left out."""
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            return False
        self._writer.write(encode_word(message))
        return True

    async def send_bytes(self, stream: int, payload: bytes) -> None:
        """Send bytes of a stream; none: its end. Waits while the network is slower."""
        self._writer.write(encode_bytes(stream, payload))
        await self._writer.drain()

    async def listen(self, on_word: Callable[[dict[str, Any]], None]) -> None:
        """Take in what comes, to the end of the connection.

        Raises FrameError for what is no frame, and OSError when the connection breaks.
        """
        try:
            while (frame := await read_frame(self._reader)) is not None:
                if frame.kind == WORD:
                    on_word(decode_word(frame.payload))
                else:
                    await self.streams.take(frame.stream, frame.payload)
        finally:
            await self.close()

    async def close(self) -> None:
        """End the connection, after what was written to it."""
        await self.streams.close()
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)

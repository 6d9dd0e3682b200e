"""Frames: what travels on a connection between hosts. A plain byte stream lies below.

    kind (1 byte)  stream (4 bytes)  length (4 bytes)  payload          big-endian

WORD is one JSON object, on stream 0. BYTES belong to a numbered stream; none of them is its end.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORD, BYTES = 1, 2
# A word has the failures of a host: each with a traceback and the last lines of a rank.
WORD_LIMIT_BYTES = 4 << 20
BYTES_LIMIT_BYTES = 64 << 10
_HEADER = struct.Struct(">BII")


class FrameError(Exception):
    """The other side sent what is no frame, or no word."""


@dataclass(frozen=True)
class Frame:
    """One frame as it came."""

    kind: int
    stream: int
    payload: bytes


def encode_word(message: Mapping[str, Any]) -> bytes:
    """A frame with one JSON object. Raises ValueError for one above the limit."""
    payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(payload) > WORD_LIMIT_BYTES:
        raise ValueError(f"a word of {len(payload)} bytes, above {WORD_LIMIT_BYTES}")
    return _HEADER.pack(WORD, 0, len(payload)) + payload


def encode_bytes(stream: int, payload: bytes) -> bytes:
    """A frame with at most BYTES_LIMIT_BYTES of a stream."""
    assert len(payload) <= BYTES_LIMIT_BYTES, len(payload)
    return _HEADER.pack(BYTES, stream, len(payload)) + payload


def decode_word(payload: bytes) -> dict[str, Any]:
    """The JSON object of a frame. Raises FrameError."""
    try:
        message = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise FrameError(f"not JSON: {problem}") from problem
    if not isinstance(message, dict):
        raise FrameError(f"not a JSON object: {type(message).__name__}")
    return message


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None at the end of the connection.

    Raises FrameError for what is no frame, before its payload is read, or one that is cut off.
    """
    try:
        head = await reader.readexactly(_HEADER.size)
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise FrameError("the connection ended within a frame") from end
        return None
    kind, stream, length = _HEADER.unpack(head)
    if kind == WORD:
        fits = stream == 0 and length <= WORD_LIMIT_BYTES
    else:
        fits = kind == BYTES and length <= BYTES_LIMIT_BYTES
    if not fits:
        raise FrameError(f"no frame: kind {kind}, stream {stream}, {length} bytes")
    try:
        payload = await reader.readexactly(length)
    except asyncio.IncompleteReadError as end:
        raise FrameError("the connection ended within a frame") from end
    return Frame(kind, stream, payload)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

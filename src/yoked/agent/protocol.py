"""How controller and agent speak: a JSON line, then as many raw bytes as its `size` says.

    request   {"id": 1, "call": "facts", "args": {...}, "size": 0}
    cancel    {"cancel": 1}
    part      {"id": 1, "part": ..., "size": 12}        any number, of a call that streams
    answer    {"id": 1, "result": ..., "size": 0}
    failure   {"id": 1, "error": {"kind", "what", "fix", "trace"}}

The agent greets first, with GREETING and what its controller told it to say: whatever a login
shell's start-up files print comes before it and is passed over.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

GREETING = "yoked-agent"
# A line is a message, not a payload: more is a stream that is not ours.
MAX_LINE_BYTES = 16 << 20

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other side said something that is no message."""


def write_message(stream: BinaryIO, message: Message, data: bytes = b"") -> None:
    """Write one message, and flush. `size` is set from the data."""
    line = json.dumps({**message, "size": len(data)}, separators=(",", ":"))
    stream.write(line.encode() + b"\n" + data)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[Message, bytes] | None:
    """The next message and its data; None at the end of the stream.

    Raises ProtocolError for what is no message, or one that was cut off.
    """
    line = stream.readline(MAX_LINE_BYTES)
    if not line:
        return None
    try:
        message = json.loads(line)
        size = message["size"]
    except (ValueError, TypeError, KeyError) as problem:
        raise ProtocolError(f"not a message: {line[:200]!r}") from problem
    data = stream.read(size) if size else b""
    if len(data) != size:
        raise ProtocolError(f"{len(data)} of {size} bytes came")
    return message, data

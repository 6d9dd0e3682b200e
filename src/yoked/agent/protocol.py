"""How controller and agent speak: a JSON line, then as many raw bytes as its `size` says.

    request   {"id": 1, "call": "facts", "args": {...}, "size": 0}
    cancel    {"cancel": 1}
    part      {"id": 1, "part": ..., "size": 12}        any number, of a call that streams
    answer    {"id": 1, "result": ..., "size": 0}
    failure   {"id": 1, "error": {"kind", "what", "fix", "trace", "code", "params"}}

Neither side trusts the other's lines: what is no message, or is larger than any message of ours,
ends the connection. The agent greets first, with GREETING and what its controller told it to say:
whatever a login shell's start-up files print comes before it and is passed over.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

from yoked.shape import is_int

GREETING = "yoked-agent"
# A line is a message, not a payload: more is a stream that is not ours. The longest names 20,000
# files by their hashes, in 2 MB.
MAX_LINE_BYTES = 16 << 20
# Files travel in pieces of 8 MiB, and small ones in batches of at most 9: seven times that.
MAX_DATA_BYTES = 64 << 20
# Answers have 8 levels at most. What is nested deeper would end in the recursion limit of
# whoever walks through it.
MAX_LEVELS = 40

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other side said something that is no message."""


class CutOffError(ProtocolError):
    """The stream ended in the middle of a message."""


def write_message(stream: BinaryIO, message: Message, data: bytes = b"") -> None:
    """Write one message, and flush. `size` is set from the data."""
    line = json.dumps({**message, "size": len(data)}, separators=(",", ":"))
    stream.write(line.encode() + b"\n" + data)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[Message, bytes] | None:
    """The next message and its data; None at the end of the stream. An `id`, if any, is an int.

    Raises ProtocolError for what is no message, CutOffError for one that was cut off.
    """
    line = stream.readline(MAX_LINE_BYTES)
    if not line:
        return None
    if not line.endswith(b"\n"):
        if len(line) < MAX_LINE_BYTES:
            raise CutOffError(f"{len(line)} bytes of a line came")
        raise ProtocolError(f"a line of more than {MAX_LINE_BYTES:,} bytes")
    message, size = _read_line(line)
    data = stream.read(size) if size else b""
    if len(data) != size:
        raise CutOffError(f"{len(data)} of {size} bytes came")
    return message, data


def _read_line(line: bytes) -> tuple[Message, int]:
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError) as problem:
        raise ProtocolError(f"not JSON: {line[:200]!r}") from problem
    if not isinstance(message, dict):
        raise ProtocolError(f"not an object: {line[:200]!r}")
    size = message.get("size")
    if not is_int(size) or not 0 <= size <= MAX_DATA_BYTES:
        raise ProtocolError(
            f"its size is no number of bytes up to {MAX_DATA_BYTES}: {line[:200]!r}"
        )
    if not is_int(message.get("id", 0)):
        raise ProtocolError(f"its id is no whole number: {line[:200]!r}")
    _require_flat(message)
    return message, size


def _require_flat(message: Message) -> None:
    level: list[Any] = [message]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ProtocolError(f"nested in more than {MAX_LEVELS} levels")

"""What a host says on the connection between hosts, and both ends that take it in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.hostile import DEEP, JSON, near, near_bytes

from yoked.channel.carry import Ends
from yoked.channel.frames import WORD, FrameError, encode_bytes, encode_word
from yoked.channel.peer import Peer
from yoked.core.schema import decode
from yoked.launch.bootstrap.notice import Notice
from yoked.launch.bootstrap.outcome import Decision, Failure

FAILURE = Failure(
    "attic", 1, "no memory", 1.7e9, rank=2, pid=7, signal="SIGKILL", kind="HOST_LOST",
    fix=("a",), traceback="b", last_lines=("c",),
)  # fmt: skip
NOTICE = Notice(
    attempt=2,
    failing=True,
    report=(FAILURE,),
    stop="interrupted",
    decision=Decision(attempt=1, status="failed", failure=FAILURE, again=True),
)
WORD_TOLD = json.loads(
    json.dumps({"notices": {"1": asdict(NOTICE)}, "beats": {"0": 7, "1": 9}, "gone": [2]})
)


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return (
        kind.to_bytes(1, "big")
        + stream.to_bytes(4, "big")
        + len(payload).to_bytes(4, "big")
        + payload
    )


def conversations() -> st.SearchStrategy[bytes]:
    """Bytes on a connection: frames, and what is near to them."""
    told = near(WORD_TOLD).map(lambda value: frame(WORD, 0, json.dumps(value).encode()))
    one = st.one_of(
        told,
        JSON.map(lambda value: frame(WORD, 0, json.dumps(value).encode())),
        st.builds(encode_bytes, st.integers(0, 600), st.binary(max_size=40)),
        st.builds(frame, st.integers(0, 4), st.integers(0, 2**32 - 1), st.binary(max_size=40)),
        DEEP.map(lambda text: frame(WORD, 0, text)),
    )
    many = st.lists(one, max_size=12).map(b"".join)
    valid = encode_word(WORD_TOLD) + encode_bytes(1, b"get") + encode_bytes(1, b"")
    # Most of what hosts say is notices, whose fields are read one by one.
    return st.one_of(told, told, told, many, many, near_bytes(valid), st.binary(max_size=200))


class Deaf:
    """A writer to a peer that takes everything."""

    transport: Any = None

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def close(self) -> None: ...


def hear(raw: bytes, folder: Path) -> None:
    """Take in what another host sent, as node 0 does: notices, and streams to the store."""
    del folder

    async def to_store() -> Ends:
        reader = asyncio.StreamReader()
        reader.feed_eof()
        store: Any = Deaf()
        return reader, store

    async def listen() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        writer: Any = Deaf()
        await Peer(1, reader, writer, to_store).listen(on_word)

    with contextlib.suppress(FrameError):
        asyncio.run(listen())


def on_word(word: dict[str, Any]) -> None:
    """What Control does with a word: it reads a notice, or counts a bad one."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        notice = decode(Notice, word["notices"]["1"])
        # What was taken can be told to the others.
        assert decode(Notice, json.loads(json.dumps(asdict(notice)))) == notice

"""What a rank recorded of some steps, as its file has it: foreign until it is read here.

yoked.ranks.spans writes it: gzip of JSON lines, a head and then a span each.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from yoked.core.schema import Constraint, Count, decode
from yoked.ranks.spans import MOST_SPANS
from yoked.text import plain

# Of a file, as it travels and as it is: more than so many spans take.
MOST_BYTES, MOST_UNPACKED_BYTES = 8 << 20, 64 << 20
_MOST_NS = 2**62

Word = Annotated[str, Constraint("at most 200 characters", lambda text: len(text) <= 200)]
Nanoseconds = Annotated[int, Constraint("a time", lambda time: 0 <= time < _MOST_NS)]
_Distance = Annotated[int, Constraint("a time", lambda time: abs(time) < _MOST_NS)]
Peers = Annotated[tuple[Count, ...], Constraint("few", lambda ranks: len(ranks) <= 1 << 16)]


@dataclass(frozen=True)
class Exchange:
    """A collective, or a message between two ranks.

    group, number: the same on all ranks that take part; number: None: not known. size: how many
    they are. bytes: of its tensors. meets: none of them is done before all have begun. done: the
    end of its span is when it was done, as this rank knew; else it had been started by then, or was
    done before.
    """

    op: Word
    group: Word
    size: Count
    number: Count | None
    bytes: Count
    peers: Peers
    meets: bool
    done: bool


@dataclass(frozen=True)
class Span:
    """What a rank did from then until then, by its host's clock.

    track: what it belongs to: steps, collectives or a thread. peers: the ranks that were waited
    for; empty: all; None: it was no wait.
    """

    track: str
    name: str
    began_ns: int
    ended_ns: int
    exchange: Exchange | None
    peers: tuple[int, ...] | None


@dataclass(frozen=True)
class _Head:
    rank: Count
    began_ns: Nanoseconds
    ended_ns: Nanoseconds
    epoch_ns: _Distance
    steps: Count
    lost: Count


@dataclass(frozen=True)
class RankTrace:
    """What a rank recorded. host: where it runs. epoch_ns: what its host's clock lacks to the time
    since 1970. steps: how many whole ones. lost: spans for which there was no room.
    """

    rank: int
    host: str
    began_ns: int
    ended_ns: int
    epoch_ns: int
    steps: int
    lost: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class _Wait:
    peers: Peers


def read_trace(packed: bytes, rank: int, host: str) -> RankTrace:
    """What a rank's file has. Raises ValueError for what is no such file, or another rank's."""
    lines = _unpacked(packed).split(b"\n")
    if len(lines) > MOST_SPANS + 1:
        raise ValueError(f"it has {len(lines)} lines")
    head: _Head = decode(_Head, _json(lines[0]))
    if head.rank != rank or head.ended_ns < head.began_ns:
        raise ValueError(f"it is that of rank {head.rank}, or of no time")
    return RankTrace(
        rank=rank,
        host=host,
        began_ns=head.began_ns,
        ended_ns=head.ended_ns,
        epoch_ns=head.epoch_ns,
        steps=head.steps,
        lost=head.lost,
        spans=tuple(_spans(lines[1:])),
    )


def _spans(lines: list[bytes]) -> Iterator[Span]:
    for line in lines:
        track, name, began_ns, ended_ns, detail = decode(
            tuple[Word, Word, Nanoseconds, Nanoseconds, Any], _json(line)
        )
        if ended_ns < began_ns:
            raise ValueError(f"{name!r:.60} ends before it begins")
        exchange = wait = None
        if isinstance(detail, dict):
            if "op" in detail:
                exchange = decode(Exchange, detail)
            else:
                wait = decode(_Wait, detail)
        peers = None if wait is None else wait.peers
        yield Span(plain(track), plain(name), began_ns, ended_ns, exchange, peers)


def _unpacked(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(packed, MOST_UNPACKED_BYTES)
    except zlib.error as problem:
        raise ValueError("it is not gzip") from problem
    if not unpacker.eof:
        raise ValueError("it is cut short, or too long")
    return text


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem

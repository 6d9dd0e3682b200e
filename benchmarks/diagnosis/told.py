"""What a host of a run tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Told:
    """A cause that a host told of, when it was new. at_s: since the epoch."""

    by: str
    at_s: float
    code: str
    hosts: list[str]
    rank: int | None
    certainty: str
    what: str


def told_by(host: str, said: Mapping[str, Any]) -> Iterator[Told]:
    """The causes in a host's diagnosis.json."""
    for cause in said.get("causes", ()):
        yield Told(
            by=host,
            at_s=said["time_s"],
            code=cause["cause"],
            hosts=cause["hosts"],
            rank=cause["rank"],
            certainty=cause["certainty"],
            what=cause["what"],
        )

"""What was seen of a run, to be kept, and judged again. Pure; standard library alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from yoked.core.schema import Count, decode
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.history import Place, RunHistory
from yoked.diagnosis.rules import causes
from yoked.diagnosis.vitals import Age, Vitals


@dataclass(frozen=True)
class Look:
    """What a host said of itself. heard_s: when, by the listener's clock."""

    heard_s: Age
    node: Count
    vitals: Vitals


@dataclass(frozen=True)
class Seen:
    """What one host saw of a run, over its last minute. here: the host's node."""

    places: tuple[Place, ...]
    here: Count
    looks: tuple[Look, ...]


def seen_of(history: RunHistory) -> dict[str, Any]:
    """A `Seen` as JSON has it."""
    looks = [
        Look(at_s, node, vitals)
        for node, host in enumerate(history.hosts)
        for at_s, vitals in host.looks
    ]
    looks.sort(key=lambda look: (look.heard_s, look.node))
    places = tuple(host.place for host in history.hosts)
    return asdict(Seen(places, history.here, tuple(looks)))


def replay(content: Mapping[str, Any]) -> Iterator[tuple[float, list[Cause]]]:
    """Judge again after each of the host's own looks: seconds since the first, and the causes.

    Raises ValueError for what is no `Seen`.
    """
    seen: Seen = decode(Seen, content)
    history = RunHistory(seen.places, seen.here)
    for look in seen.looks:
        history.take(look.node, look.vitals, look.heard_s)
        history.tick(look.heard_s)
        if look.node == seen.here:
            yield look.heard_s - seen.looks[0].heard_s, causes(history)

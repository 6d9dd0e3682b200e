"""Ranks that never ran: what they would have recorded, by clocks that are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from yoked.trace.recorded import Exchange, RankTrace, Span

MS = 1_000_000


@dataclass(frozen=True)
class TrueClock:
    """By how much a host's clock is ahead, and what it gains in a second."""

    ahead_s: float = 0.0
    drift: float = 0.0

    def shows(self, true_ns: float) -> int:
        return round(true_ns * (1 + self.drift) + self.ahead_s * 1e9)


def collective(number: int, began_ns: int, ended_ns: int, size: int, group: str = "0") -> Span:
    told = Exchange("all_reduce", group, size, number, 4000, (), meets=True, done=True)
    return Span("collectives", "gradients", began_ns, ended_ns, told, None)


def recorded(
    clocks: Sequence[TrueClock],
    *,
    count: int = 40,
    every_s: float = 0.25,
    hosts: Sequence[str] | None = None,
    late_rank: int | None = None,
    wakes_late: float = 0.0,
    seed: int = 1,
) -> list[RankTrace]:
    """Ranks that share `count` collectives.

    late_rank: always begins last. wakes_late: the part of all ends of which a rank hears up to
    30 ms later, as on a host whose cores are crowded.
    """
    dice = random.Random(seed)
    size = len(clocks)
    start_ns = 100e9
    spans: list[list[Span]] = [[] for _ in clocks]
    for number in range(count):
        about_ns = start_ns + number * every_s * 1e9
        begins = [about_ns + dice.uniform(0, 40 * MS) for _ in clocks]
        if late_rank is not None:
            begins[late_rank] = about_ns + 60 * MS
        done_ns = max(begins) + dice.uniform(0.2, 0.6) * MS
        for rank, clock in enumerate(clocks):
            heard_ns = done_ns + dice.uniform(0, 0.3) * MS
            if dice.random() < wakes_late:
                heard_ns += dice.uniform(5, 30) * MS
            began, ended = clock.shows(begins[rank]), clock.shows(heard_ns)
            spans[rank].append(collective(number, began, ended, size))
    end_ns = start_ns + count * every_s * 1e9
    return [
        RankTrace(
            rank=rank,
            host=f"host{rank}" if hosts is None else hosts[rank],
            began_ns=clock.shows(start_ns),
            ended_ns=clock.shows(end_ns),
            epoch_ns=0,
            steps=0,
            lost=0,
            spans=tuple(spans[rank]),
        )
        for rank, clock in enumerate(clocks)
    ]

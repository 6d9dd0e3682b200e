"""The clocks of hosts, brought onto one by the collectives that their ranks share.

A collective in which every rank needs all the others' part (all_reduce, all_gather, barrier) bounds
how far two clocks are apart from both sides: no rank is done before every rank has begun. Within
these bounds the moments at which it was done, nearly the same on all ranks, are the estimate.

Of each kind of collective every other one is used; the rest says how good the clocks are. Of those
that are used the half counts in which least time went by on the rank that came last: so long at
most, as a rule, one rank learns of the end after another. Over them a line is laid by the medians
of differences and of slopes, which a few late wake-ups do not move, and is moved into the bounds.

Source: bounds from messages in both directions, Duda, Harrus, Haddad and Bernard, "Estimating
global time in distributed systems", ICDCS 1987; the line, Siegel, "Robust regression using repeated
medians", 1982; into the bounds, by projections, Agmon 1954.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from yoked.trace.recorded import RankTrace

# Two clocks that are both slewed by as much as adjtime(2) does gain no more on each other.
MOST_DRIFT = 1e-3
# Fewer say nothing of a drift. More of them take long, pair by pair.
_LEAST_FOR_DRIFT, _MOST_POINTS = 6, 300
_LEAST_KEPT = 4
# Where bounds contradict each other, no number of moves is enough.
_MOST_MOVES, _BEYOND_NS = 200, 1e3


class Clock(NamedTuple):
    """A host's clock against the common one, that of the host of the lowest rank.

    It is ahead by offset_ns at at_ns, by itself, and gains drift seconds a second from then on.
    by_collectives: whether that was measured; else it is what the hosts take for the time of day.
    """

    at_ns: int = 0
    offset_ns: float = 0.0
    drift: float = 0.0
    by_collectives: bool = True

    def common_ns(self, own_ns: int) -> float:
        """A moment by the common clock."""
        return own_ns - self.ahead_ns(own_ns)

    def ahead_ns(self, own_ns: int) -> float:
        """By how much it is ahead at a moment, by itself."""
        return self.offset_ns + self.drift * (own_ns - self.at_ns)


@dataclass(frozen=True)
class Meeting:
    """A collective that ends on no rank before it has begun on all; times by each host's clock."""

    kind: tuple[str, int]
    began_ns: Mapping[int, int]
    ended_ns: Mapping[int, int]


@dataclass(frozen=True)
class Alignment:
    """clocks: by host. used: collectives from which they are. apart_s: of each of the others, how
    far its ends on the ranks lie apart by these clocks.
    """

    clocks: Mapping[str, Clock]
    used: int
    apart_s: tuple[float, ...]

    @property
    def by_time_of_day(self) -> list[str]:
        """The hosts whose ranks shared no such collective with the others."""
        return sorted(host for host, clock in self.clocks.items() if not clock.by_collectives)


def meetings_of(ranks: Iterable[RankTrace]) -> list[Meeting]:
    """The collectives of which all ranks that took part tell the same, by when they ended."""
    found: dict[tuple[str, int], dict[int, tuple[tuple[str, int], int, int, int]]] = {}
    for trace in ranks:
        for span in trace.spans:
            told = span.exchange
            if told is None or told.number is None or not (told.meets and told.done):
                continue
            kind = (told.op, told.bytes)
            here = found.setdefault((told.group, told.number), {})
            here[trace.rank] = (kind, told.size, span.began_ns, span.ended_ns)
    meetings = [
        Meeting(
            kind=next(iter(told.values()))[0],
            began_ns={rank: began_ns for rank, (_, _, began_ns, _) in told.items()},
            ended_ns={rank: ended_ns for rank, (_, _, _, ended_ns) in told.items()},
        )
        for told in found.values()
        if len({(kind, size) for kind, size, _, _ in told.values()}) == 1
        and all(size == len(told) for _, size, _, _ in told.values())
    ]
    return sorted(meetings, key=lambda each: each.ended_ns[min(each.ended_ns)])


def align(ranks: Sequence[RankTrace]) -> Alignment:
    """The clocks of the hosts of these ranks."""
    host_of = {trace.rank: trace.host for trace in ranks}
    first = min(ranks, key=lambda trace: trace.rank)
    fitted, others = _halves(meetings_of(ranks))
    clocks = {first.host: Clock()}
    while (pair := _nearest(fitted, host_of, clocks)) is not None:
        host, known = pair
        clocks[host] = _fit(fitted, host, known, host_of, clocks[known])
    for trace in ranks:
        if trace.host not in clocks:
            ahead_ns = float(first.epoch_ns - trace.epoch_ns)
            clocks[trace.host] = Clock(offset_ns=ahead_ns, by_collectives=False)
    apart_s = []
    for each in others:
        ends = [clocks[host_of[rank]].common_ns(end_ns) for rank, end_ns in each.ended_ns.items()]
        apart_s.append((max(ends) - min(ends)) / 1e9)
    return Alignment(clocks, len(fitted), tuple(apart_s))


def _halves(meetings: Iterable[Meeting]) -> tuple[list[Meeting], list[Meeting]]:
    """Every other one of each kind, and the rest."""
    by_kind = defaultdict[object, list[Meeting]](list)
    for each in meetings:
        by_kind[each.kind, frozenset(each.began_ns)].append(each)
    halves: tuple[list[Meeting], list[Meeting]] = ([], [])
    for alike in by_kind.values():
        halves[0].extend(alike[::2])
        halves[1].extend(alike[1::2])
    return halves


def _nearest(
    meetings: Iterable[Meeting], host_of: Mapping[int, str], clocks: Mapping[str, Clock]
) -> tuple[str, str] | None:
    """A host whose clock is not known, and one that is, which meet most often; None: no more."""
    met = defaultdict[tuple[str, str], int](int)
    for each in meetings:
        hosts = {host_of[rank] for rank in each.began_ns}
        for known in hosts & clocks.keys():
            for host in hosts - clocks.keys():
                met[host, known] += 1
    return max(sorted(met), key=lambda pair: met[pair], default=None)


class _Point(NamedTuple):
    """What one collective says of a host's clock at at_ns, by itself: by how much it is ahead.

    least_ns, most_ns: it cannot be otherwise. late_ns: for so long it went on after all had begun.
    """

    at_ns: int
    ahead_ns: float
    least_ns: float
    most_ns: float
    late_ns: float


def _fit(
    meetings: Iterable[Meeting],
    host: str,
    known: str,
    host_of: Mapping[int, str],
    known_clock: Clock,
) -> Clock:
    """The clock of a host, by the collectives that it shares with one whose clock is known."""
    points = []
    for each in meetings:
        own = [rank for rank in each.began_ns if host_of[rank] == host]
        theirs = [rank for rank in each.began_ns if host_of[rank] == known]
        if not own or not theirs:
            continue
        began_ns = max(each.began_ns[rank] for rank in own)
        ended_ns = min(each.ended_ns[rank] for rank in own)
        other_began_ns = known_clock.common_ns(max(each.began_ns[rank] for rank in theirs))
        other_ended_ns = known_clock.common_ns(min(each.ended_ns[rank] for rank in theirs))
        points.append(
            _Point(
                at_ns=ended_ns,
                ahead_ns=ended_ns - other_ended_ns,
                least_ns=began_ns - other_ended_ns,
                most_ns=ended_ns - other_began_ns,
                late_ns=min(ended_ns - began_ns, other_ended_ns - other_began_ns),
            )
        )
    kept = sorted(points, key=lambda point: point.late_ns)
    kept = kept[: max(_LEAST_KEPT, len(points) // 2)][:_MOST_POINTS]
    drift = _slope(kept)
    at_ns = (min(point.at_ns for point in points) + max(point.at_ns for point in points)) // 2
    offset_ns = median(point.ahead_ns - drift * (point.at_ns - at_ns) for point in kept)
    return _within_bounds(Clock(at_ns, offset_ns, drift), points)


def _within_bounds(clock: Clock, points: Sequence[_Point]) -> Clock:
    """The clock, moved no further than until it is within what each point says that it must be.

    By the bound that it is furthest beyond, again and again: as near as that where all cannot hold.
    """
    # Of the two numbers of a line, in units in which both count alike.
    half_ns = max(1, *(abs(point.at_ns - clock.at_ns) for point in points))
    for _ in range(_MOST_MOVES):
        beyond_ns, at_ns = 0.0, clock.at_ns
        for point in points:
            ahead_ns = clock.ahead_ns(point.at_ns)
            for each_ns in (
                max(0.0, point.least_ns - ahead_ns),
                min(0.0, point.most_ns - ahead_ns),
            ):
                if abs(each_ns) > abs(beyond_ns):
                    beyond_ns, at_ns = each_ns, point.at_ns
        if abs(beyond_ns) < _BEYOND_NS:
            break
        place = (at_ns - clock.at_ns) / half_ns
        move_ns = beyond_ns / (1 + place**2)
        clock = clock._replace(
            offset_ns=clock.offset_ns + move_ns, drift=clock.drift + move_ns * place / half_ns
        )
    return clock


def _slope(points: Sequence[_Point]) -> float:
    """By how much a clock gains, in seconds a second; 0 where too few say it."""
    if len(points) < _LEAST_FOR_DRIFT:
        return 0.0
    slopes = [
        median(
            (b.ahead_ns - a.ahead_ns) / (b.at_ns - a.at_ns) for b in points if a.at_ns != b.at_ns
        )
        for a in points
        if any(a.at_ns != b.at_ns for b in points)
    ]
    return max(-MOST_DRIFT, min(MOST_DRIFT, median(slopes))) if slopes else 0.0

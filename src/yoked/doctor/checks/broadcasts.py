"""Whether what a host says to all of its network comes to another's card, as the question for a
network card does. What comes there is known before any rule of that host.
"""

from __future__ import annotations

from collections.abc import Iterable

from yoked.doctor.checks.query import part
from yoked.records.examination import Examination, HostSeen

Way = tuple[str, str]


def comes(source: HostSeen, target: HostSeen) -> bool | None:
    """Whether what a host says to all came to the card of another; None: it is not known."""
    card = part(target, "broadcasts", "card")
    if card is None or part(source, "broadcasts", "sent") is not True:
        return None
    return source.name in card


def deaf(seen: Examination) -> list[str]:
    """The hosts to whose card nothing comes of what others say to all, and a third hears."""
    found = []
    for target in seen.up:
        told = [comes(source, target) for source in seen.up
                if source != target and _is_heard(seen, source)]  # fmt: skip
        if False in told and True not in told:
            found.append(target.name)
    return found


def mute(seen: Examination) -> list[str]:
    """The hosts of which nothing that they say to all comes to any card, though others' does."""
    hearing = [host for host in seen.up if part(host, "broadcasts", "card")]
    return [
        source.name
        for source in seen.up
        if (told := [comes(source, host) for host in hearing if host != source])
        and set(told) == {False}
    ]


def _is_heard(seen: Examination, source: HostSeen) -> bool:
    return any(comes(source, host) for host in seen.up if host != source)


def lost_ways(seen: Examination, pairs: Iterable[Way]) -> list[Way]:
    """Of pairs of hosts those on which nothing comes of what the first says to all."""
    return [each for each in pairs if comes(*map(seen.host, each)) is False]

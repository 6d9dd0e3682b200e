"""What the program here asks for by name, and what hosts tell of each name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.query import at, mapping, part
from yoked.records.examination import Examination, Fix
from yoked.records.shell import path_word
from yoked.units import listed

# What hosts tell of one name, by host.
Told = dict[str, Any]


def asked(seen: Examination, *kinds: str) -> Iterator[tuple[str, str]]:
    """(name, place) of what the program asks for."""
    for kind in kinds:
        yield from ((str(name), str(place)) for name, place in
                    mapping(at(seen.controller, "asks", kind)).items())  # fmt: skip


def told_of(seen: Examination, kind: str, name: str) -> Told:
    """What each host that answered says of a name."""
    answers = {host.name: mapping(part(host, "asked", kind)) for host in seen.up}
    return {host: own[name] for host, own in answers.items() if name in own}


def odd_among(kinds: Mapping[str, object]) -> list[str]:
    """The hosts that have another than most; all, where no kind has most."""
    counts = Counter(kinds.values()).most_common()
    if len(counts) < 2:
        return []
    is_told = counts[0][1] > counts[1][1]
    return [host for host, kind in kinds.items() if not is_told or kind != counts[0][0]]


def besides(names: Iterable[str], word: str = "is there on") -> str:
    others = list(names)
    return f", and {word} {listed(others)}" if others else ""


def wanting(
    how: str,
    name: str,
    place: str,
    hosts: Collection[str],
    mend: Callable[..., Fix] | Iterable[Fix],
    **params: Any,
) -> Match:
    """What is wrong on hosts with a name that the program asks for at a place.

    mend: the lines, or what makes that of a host, of `name`, `path` and `place`. params: of the
    sentence, which knows `name`, `place` and `where`, the hosts, without.
    """
    if callable(mend):
        path = path_word(name)
        mend = [mend(each, name=name, path=path, place=place) for each in hosts or [""]]
    known = {"name": name, "place": place, "where": listed(hosts), **params}
    return Match(hosts, *mend, severity="warning", how=how, **known)

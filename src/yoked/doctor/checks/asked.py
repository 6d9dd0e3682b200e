"""What the program here asks of its host, and hosts may answer otherwise: an order, the hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from yoked.doctor.check import Match
from yoked.doctor.checks.content import rsync
from yoked.doctor.checks.environment import take_out
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import first_listed, listed

_SHOWN = 3
_UTC = "Etc/UTC"


SAW = {
    "unsorted": "hosts list the data in another order than {host}: {described}; it is not sorted "
    "at {places}",
    "file_times": "the data's files, by their times, are in another order than on {host}: "
    "{described}; they are sorted so at {places}",
    "local_time": "local time is {described}; it is asked for at {places}",
}
WHY = {
    **dict.fromkeys(
        ("unsorted", "file_times"),
        "a program that deals names out by rank in that order has some files read twice and others "
        "never",
    ),
    "local_time": "what a program makes of the hour or the date, such as a seed or the name of a "
    "folder, is another on some hosts, and nobody says so",
}


def in_other_order(seen: Examination) -> Iterator[Match]:
    """Hosts that have the same files in another order, where the program would see it."""
    # Whoever asks for times takes the order from them: see yoked.doctor.compare.
    how = "file_times" if at(seen.controller, "file_times") else "unsorted"
    places = at(seen.controller, how) or ()
    told = {host.name: list(data) for host in seen.up if (data := mapping(part(host, "data")))}
    common = set.intersection(*map(set, told.values())) if told else set()
    orders = {host: [name for name in names if name in common] for host, names in told.items()}
    first = next(iter(orders), "")
    odd = [host for host, names in orders.items() if names != orders[first]]
    if not odd or not places:
        return
    columns = zip(*orders.values(), strict=True)
    begin = next(number for number, names in enumerate(columns) if len(set(names)) > 1)
    part_of = slice(begin, begin + _SHOWN)
    shown = [f"{', '.join(orders[host][part_of])} on {host}" for host in (first, *odd)]
    fixes = [by_hand("", "have {places} take sorted(...) of the names", places=listed(places))]
    if how == "file_times":
        wanted = [name for name in seen.need.data or () if name in common]
        others = [seen.host(host) for host, names in orders.items() if names != wanted]
        fixes = [by_hand("", "{line}    which gives {name} the times that files have here",
                         line=rsync(seen, each), name=each.name) for each in others]  # fmt: skip
    yield Match(
        (first, *odd),
        *fixes,
        severity="warning",
        how=how,
        described=listed(shown),
        places=first_listed(places),
    )


def in_other_zones(seen: Examination) -> Iterator[Match]:
    """Hosts whose local time is another one than that of most, where the program asks for it."""
    clocks = {host.name: mapping(part(host, "clock")) for host in seen.up}
    offsets = {host: own["utc_offset_s"] for host, own in clocks.items()
               if own.get("utc_offset_s") is not None}  # fmt: skip
    places = at(seen.controller, "local_time") or ()
    if not places or len(set(offsets.values())) < 2:
        return
    usual = Counter(offsets.values()).most_common(1)[0][0]
    zones = {host: str(clocks[host].get("zone") or _UTC) for host in offsets}
    meant = next(zones[host] for host, offset in offsets.items() if offset == usual)
    odd = [host for host, offset in offsets.items() if offset != usual]
    shown = [f"{zones[host]} ({_as_offset(offset)}) on {host}" for host, offset in offsets.items()]
    yield Match(
        odd,
        *(fix for host in odd for fix in _in_zone(seen.host(host), meant)),
        severity="warning",
        how="local_time",
        described=listed(shown),
        places=first_listed(places),
    )


def _as_offset(offset_s: float) -> str:
    """As date(1) writes it: -0500."""
    hours, minutes = divmod(abs(int(offset_s)) // 60, 60)
    return f"{'-' if offset_s < 0 else '+'}{hours:02}{minutes:02}"


def _in_zone(host: HostSeen, zone: str) -> Iterator[Fix]:
    """What gives a host the time zone of the others."""
    if mapping(part(host, "environment")).get("TZ"):
        yield from take_out(host, ["TZ"])
    else:
        yield by_hand(host.name, "sudo timedatectl set-timezone {zone}", zone=zone)

"""Transfers that stop or crawl although small messages pass, and the rules that count bytes."""

from __future__ import annotations

from dataclasses import dataclass

from yoked.doctor.checks.blame import blame_for_bytes
from yoked.doctor.checks.links import connected, reached
from yoked.doctor.checks.query import chosen_address, chosen_interface, interface_kind, part
from yoked.doctor.firewalls import allow, held_by
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Dial, Examination, Fix

# A first window of full-size packets, of which not one arrived.
NOTHING_BYTES = 14_600
# A cable of the oldest kind carries as much; a step of megabytes takes a minute.
CRAWL_BYTES_PER_S = 1.25e6


@dataclass(frozen=True)
class Counted:
    """What is to be mended of a transfer. rule: that which counts its bytes, as the end of a
    sentence; empty: none is known.
    """

    host: str
    fix: tuple[Fix, ...]
    rule: str
    link: tuple[str, str]

    @property
    def place(self) -> tuple[str, ...]:
        """One for all links that one rule holds up."""
        return (self.host, self.rule) if self.rule else self.link


def is_stalled(dial: Dial) -> bool:
    """Whether a long transfer did not come to its end, after something of it had come."""
    if reached(dial) or not connected(dial):
        return False
    # Before a burst full-size packets passed.
    return dial.purpose == "burst" or (dial.bulk_bytes or 0) > NOTHING_BYTES


def crawls(seen: Examination, dial: Dial) -> bool:
    """Whether a burst came so slowly that its cable cannot be the reason."""
    if dial.purpose != "burst" or not reached(dial) or not dial.goodput_bytes_per_s:
        return False
    kinds = {
        interface_kind(host, chosen_interface(seen, host))
        for host in (seen.host(dial.source), seen.host(dial.target))
    }
    # Those of all hosts come at once.
    at_once = len(seen.up) - 1
    return kinds <= {"physical", "bridge"} and (
        dial.goodput_bytes_per_s * at_once < CRAWL_BYTES_PER_S
    )


def find_counting(seen: Examination, dial: Dial) -> Counted:
    """The rule that counts the bytes of a dial; else a look by hand."""
    source, target = seen.host(dial.source), seen.host(dial.target)
    link = (source.name, target.name)
    guilty = blame_for_bytes(seen, dial)
    if guilty is None:
        look = by_hand(
            target.name,
            "check cable, switch and radio between {source} and {target}",
            source=source.name,
            target=target.name,
        )
        return Counted(target.name, (look,), "", link)
    told = part(seen.host(guilty.host), "firewall")
    others = [chosen_address(seen, each) for each in seen.up if each.name != guilty.host]
    peers = [each for each in others if each]
    fix = allow(guilty.host, told, peers, guilty.direction, found=guilty.found)
    rule = f"; by {held_by(told, guilty.found)}: {guilty.found[0].words}"
    return Counted(guilty.host, fix, rule, link)

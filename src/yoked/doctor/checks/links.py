"""Links on which connections fail, and what was dialled there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from yoked.doctor.checks.query import chosen_address, part
from yoked.records.examination import Dial, Examination, HostSeen

# What a kernel answers to a dial for which a host has no port, or a process no descriptor left.
USED_UP = frozenset({"EADDRNOTAVAIL", "EADDRINUSE", "EAGAIN"})
NO_DESCRIPTORS = frozenset({"EMFILE", "ENFILE"})
NOTHING_LEFT = USED_UP | NO_DESCRIPTORS
# What is said of a connection that stood, and does no more. ABORTED: by the host's own kernel, as a
# program has told it to (`ss -K`). Source: tcp_abort of Linux's net/ipv4/tcp.c.
ABORTED = "ECONNABORTED"
_BROKEN = frozenset({ABORTED, "ECONNRESET", "EPIPE"})


@dataclass(frozen=True)
class Link:
    """A link with something wrong. dials: at the address of the run, those first that fail of a
    port that the kernel picked.
    """

    seen: Examination
    source: HostSeen
    target: HostSeen
    dials: tuple[Dial, ...]

    @property
    def ephemeral(self) -> tuple[Dial, ...]:
        """Dials at ports that the kernel picked."""
        return tuple(each for each in self.dials if each.purpose != "rendezvous")

    @property
    def failed(self) -> Dial:
        """The first dial that did not come through, of those first that left the host.

        Dials that wait for an answer can take the last ports of a source, and then the next fail.
        """
        failed = [each for each in self.dials if not reached(each)]
        return next((each for each in failed if each.error not in NOTHING_LEFT), failed[0])

    @property
    def address(self) -> str:
        """The target's."""
        return self.dials[0].address

    @property
    def source_address(self) -> str | None:
        """The source's: that which its kernel takes, else that of the run."""
        return self.failed.source_address or chosen_address(self.seen, self.source)

    @property
    def name(self) -> tuple[str, str]:
        """(source, target)."""
        return self.source.name, self.target.name

    @property
    def rendezvous_passed(self) -> bool | None:
        """Whether the port that stays the same is open; None: it was not tried."""
        tried = [each for each in self.dials if each.purpose == "rendezvous"]
        # A dial without a port of its own was made again from another one, and came through.
        return None if not tried else all(reached(each) or each.error in USED_UP for each in tried)

    def back(self) -> Link | None:
        """The link in the other direction, if it fails too."""
        return link_between(self.seen, self.target, self.source)

    def way(self, *names: str) -> object:
        """What the source says of its way to the target's address."""
        return part(self.source, "routes", self.address, *names)


def reached(dial: Dial) -> bool:
    """Whether a dial came through, and to the right host."""
    return dial.ok and dial.answered_by in (None, dial.target)


def connected(dial: Dial) -> bool:
    """Whether a dial got as far as an answer, whatever came then."""
    return reached(dial) or dial.rtt_s is not None


def broke(dial: Dial) -> bool:
    """Whether a connection that stood was ended from outside."""
    return not reached(dial) and connected(dial) and dial.error in _BROKEN


def link_between(seen: Examination, source: HostSeen, target: HostSeen) -> Link | None:
    """A link on which connections fail. What fails later, of bulk alone, is not about the way."""
    dials = [
        each
        for each in seen.between(
            source.name, target.name, ("ephemeral", "bulk", "burst", "rendezvous")
        )
        if not broke(each)
        and (each.purpose not in ("bulk", "burst") or reached(each) or not connected(each))
    ]
    counted = [each for each in dials if each.purpose != "rendezvous"] or dials
    if all(map(reached, counted)):
        return None
    dials.sort(key=lambda each: (each.purpose == "rendezvous", reached(each)))
    return Link(seen, source, target, tuple(dials))


_Found = TypeVar("_Found")


def once(work_out: Callable[[Examination], _Found]) -> Callable[[Examination], _Found]:
    """Remember what was worked out of the last examination: dozens of checks ask for it."""
    last: tuple[Examination, _Found] | None = None

    @wraps(work_out)
    def ask(seen: Examination) -> _Found:
        nonlocal last
        known = last
        # By identity: to compare or to hash one would take as long.
        if known is None or known[0] is not seen:
            known = last = (seen, work_out(seen))
        return known[1]

    return ask


@once
def failing(seen: Examination) -> list[Link]:
    """All links that fail, in the order of the hosts."""
    return [
        link
        for target in seen.up
        for source in seen.up
        if source != target and (link := link_between(seen, source, target)) is not None
    ]

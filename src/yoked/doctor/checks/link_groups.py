"""Links that fail, put together by what is to be mended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.blame import Blame
from yoked.doctor.checks.links import Link, broke, reached
from yoked.doctor.checks.query import chosen_address, chosen_interface
from yoked.doctor.checks.verdicts import Verdict, verdicts
from yoked.doctor.repairs.fleet import choose_again
from yoked.doctor.ruleset import Suspect
from yoked.records.examination import Dial, Examination, Fix, HostSeen
from yoked.units import format_duration, plural


@dataclass(frozen=True)
class Group:
    """Links that fail by one cause on one host. blames: what is in the way of them there, where
    that is known.
    """

    seen: Examination
    host: HostSeen
    links: tuple[Link, ...]
    blames: tuple[Blame, ...] = ()

    @property
    def peers(self) -> list[HostSeen]:
        """The hosts at the other ends, once each."""
        found = {
            each.name: each
            for link in self.links
            for each in (link.source, link.target)
            if each != self.host
        }
        return list(found.values())

    @property
    def peer_addresses(self) -> list[str]:
        """Theirs, as far as they have one."""
        own = [chosen_address(self.seen, each) for each in self.peers]
        return [each for each in own if each is not None]

    @property
    def far_ends(self) -> list[str]:
        """The addresses of the other ends, as packets of these links have them."""
        found = [
            link.address if link.source == self.host else link.source_address for link in self.links
        ]
        return list(dict.fromkeys(each for each in found if each))

    @property
    def found(self) -> list[Suspect]:
        """The rules that are in the way, each once, those first that surely are."""
        rules = dict.fromkeys(each for blame in self.blames for each in blame.found)
        return sorted(rules, key=lambda each: not each.sure)

    @property
    def proven(self) -> bool:
        """Whether there is proof of any on the host itself."""
        return any(each.proven for each in self.blames)

    @property
    def names(self) -> list[str]:
        """The host and its peers."""
        return [self.host.name, *(each.name for each in self.peers)]

    @property
    def interface(self) -> str:
        """The host's own, as the run would use it."""
        return str(chosen_interface(self.seen, self.host))

    @property
    def address(self) -> str | None:
        """The host's own, as the run would use it."""
        return chosen_address(self.seen, self.host)

    def match(self, *fix: Fix, hosts: Iterable[str] = (), **params: Any) -> Match:
        """The group as a finding, with `evidence`: what was dialled, in one line.

        hosts: those to mend; default: the host alone.
        """
        first, *others = self.links
        is_third = any(self.host.name not in link.name for link in self.links)
        more = f" (and {plural(len(others), 'other link')})" if others else ""
        return Match(
            hosts or self.host.name,
            *fix,
            link=None if others else first.name,
            # From a third host all of them suffer.
            reaches=sorted({name for each in self.links for name in each.name}) if is_third else (),
            evidence=f"{described(first.failed)}{more}",
            **params,
        )


def groups(seen: Examination, check: str) -> Iterator[Group]:
    """The links whose verdict is this check, by the host to mend."""
    found: dict[str, list[Verdict]] = {}
    for verdict in verdicts(seen):
        if verdict.check == check:
            found.setdefault(verdict.host, []).append(verdict)
    for host in seen.up:
        if host.name in found:
            own = found[host.name]
            blames = tuple(each.blame for each in own if each.blame)
            yield Group(seen, host, tuple(each.link for each in own), blames)


def described(dial: Dial) -> str:
    """A dial and how it ended, with figures."""
    way = f"{dial.source} to {dial.target} at {dial.address} port {dial.port}"
    if reached(dial):
        return f"{way}: answered"
    if dial.answered_by not in (None, dial.target):
        return f"{way}: {dial.answered_by} answered"
    # Of a connection that stood it is how long it took to come about.
    timed = dial.took_s is not None and not broke(dial)
    took = f" after {format_duration(dial.took_s or 0.0)}" if timed else ""
    if dial.error == "ETIMEDOUT" and dial.rtt_s is not None:
        return f"{way}: it answered, and then nothing more came"
    if dial.error == "ETIMEDOUT" and dial.opened:
        return f"{way}: it connected{took}, and nothing came of what was said then"
    if dial.error == "ETIMEDOUT":
        return f"{way}: no answer{took}{_got(dial)}"
    return f"{way}: {dial.error_text or 'failed'} ({dial.error}){took}"


def _got(dial: Dial) -> str:
    """What the target's kernel knows of a dial without an answer."""
    if dial.arrived is None:
        return ""
    under = f" as {dial.arrived_from}" if dial.arrived_from else ""
    return f", and {dial.target} got {f'it{under}' if dial.arrived else 'nothing of it'}"


def alternative(group: Group, *otherwise: Fix) -> tuple[Fix, ...]:
    """Find an interface anew, where the hosts reach each other at another address."""
    pairs = {link.name for link in group.links}
    by_other = {
        (each.source, each.target) for each in group.seen.dials if not each.chosen and reached(each)
    }
    return (choose_again(group.seen),) if pairs <= by_other else otherwise

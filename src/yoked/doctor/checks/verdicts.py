"""Why a link fails: one cause for each, decided by the first rule that fits.

The checks of ways and firewalls each tell the verdicts that bear their name, so no link is told
twice, and none that fails goes untold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from yoked.doctor.checks.query import (
    ANSWERED,
    SILENT,
    addresses,
    at,
    chosen_address,
    former_address,
    in_network,
    interface_kind,
    mapping,
    part,
)
from yoked.doctor.firewalls import drops_outgoing, is_off, limits_rate
from yoked.fleet.enclosed import enclosed_by
from yoked.records.examination import Dial, Examination, HostSeen

# What a host's own kernel answers when a route forbids the way.
# Source: fib_props in Linux's net/ipv4/fib_semantics.c.
FORBIDDEN = {"EACCES": "prohibit", "EINVAL": "blackhole", "EHOSTUNREACH": "unreachable"}
_UNREACHABLE = frozenset({"EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "ENONET"})
# What a kernel answers to a dial for which a host has no port, or a process no descriptor left.
USED_UP = frozenset({"EADDRNOTAVAIL", "EADDRINUSE", "EAGAIN"})
NO_DESCRIPTORS = frozenset({"EMFILE", "ENFILE"})
_NOTHING_LEFT = USED_UP | NO_DESCRIPTORS


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
        return next((each for each in failed if each.error not in _NOTHING_LEFT), failed[0])

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
        return _link(self.seen, self.target, self.source)

    def way(self, *names: str) -> object:
        """What the source says of its way to the target's address."""
        return part(self.source, "routes", self.address, *names)


@dataclass(frozen=True)
class Verdict:
    """A link that fails. check: the one that tells it; host: the one to mend."""

    check: str
    host: str
    link: Link


def reached(dial: Dial) -> bool:
    """Whether a dial came through, and to the right host."""
    return dial.ok and dial.answered_by in (None, dial.target)


def connected(dial: Dial) -> bool:
    """Whether a dial got as far as an answer, whatever came then."""
    return reached(dial) or dial.rtt_s is not None


def _link(seen: Examination, source: HostSeen, target: HostSeen) -> Link | None:
    """A link on which connections fail. What fails later, of bulk alone, is not about the way."""
    dials = [
        each
        for each in seen.between(source.name, target.name, ("ephemeral", "bulk", "rendezvous"))
        if each.purpose != "bulk" or reached(each) or not connected(each)
    ]
    counted = [each for each in dials if each.purpose != "rendezvous"] or dials
    if all(map(reached, counted)):
        return None
    dials.sort(key=lambda each: (each.purpose == "rendezvous", reached(each)))
    return Link(seen, source, target, tuple(dials))


_Found = TypeVar("_Found")


def _once(work_out: Callable[[Examination], _Found]) -> Callable[[Examination], _Found]:
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


@_once
def failing(seen: Examination) -> list[Link]:
    """All links that fail, in the order of the hosts."""
    return [
        link
        for target in seen.up
        for source in seen.up
        if source != target and (link := _link(seen, source, target)) is not None
    ]


@_once
def verdicts(seen: Examination) -> list[Verdict]:
    """One for each link that fails."""
    return [_verdict(link) for link in failing(seen)]


def _verdict(link: Link) -> Verdict:
    for rule in _RULES:
        found = rule(link)
        if found is not None:
            return found
    return Verdict("dial-failed", link.target.name, link)


def _hidden(link: Link) -> Verdict | None:
    """The target's address is one that only its own machine can dial."""
    check = _enclosed(link)
    return None if check in (None, "wsl-firewall") else Verdict(str(check), link.target.name, link)


def _windows_firewall(link: Link) -> Verdict | None:
    """The target is Linux in Windows with Windows' own addresses, and nothing comes in."""
    found = _enclosed(link) == "wsl-firewall"
    return Verdict("wsl-firewall", link.target.name, link) if found else None


def _enclosed(link: Link) -> str | None:
    virtual = mapping(part(link.target, "virtual"))
    return enclosed_by(virtual, link.dials[0].interface, link.address, link.failed.error)


def _impostor(link: Link) -> Verdict | None:
    """Somebody answers, but not the target."""
    foreign = any(
        dial.error == "EPROTO" or dial.answered_by not in (None, dial.target) for dial in link.dials
    )
    return Verdict("other-answers", link.target.name, link) if foreign else None


def _nothing_left(link: Link) -> Verdict | None:
    """The source has no port, or no descriptor, to dial with."""
    error = link.failed.error
    if error in USED_UP:
        return Verdict("port-range", link.source.name, link)
    return Verdict("open-files", link.source.name, link) if error in NO_DESCRIPTORS else None


def _either(rule: Callable[[Link], str | None]) -> Callable[[Link], Verdict | None]:
    """A rule about the way out of a host, asked of both: an answer needs a way back."""

    def asked(link: Link) -> Verdict | None:
        towards = (each for each in link.seen.dials if each.target == link.source.name)
        dials = tuple(each for each in towards if each.chosen)
        for each in (link, Link(link.seen, link.target, link.source, dials)):
            check = rule(each) if each.dials else None
            if check is not None:
                host = _stray(link) if check == "other-network" else each.source.name
                return Verdict(check, host, link)
        return None

    return asked


def _netmask(way: Link) -> str | None:
    """The target counts the source to its network, but not the other way round."""
    own, other = chosen_address(way.seen, way.source), way.address
    if own is None:
        return None
    here, there = in_network(way.source, own, other), in_network(way.target, other, own)
    return "wrong-netmask" if here is False and there else None


def _route(way: Link) -> str | None:
    """The kernel refuses to send there: no route, or one that forbids it."""
    error = way.way("error")
    if error is None:
        return None
    own = chosen_address(way.seen, way.source)
    neighbours = own is not None and in_network(way.source, own, way.address)
    if error in FORBIDDEN and (neighbours or error != "EHOSTUNREACH"):
        return "forbidden-route"
    return "no-route" if neighbours else "other-network"


def _stray(link: Link) -> str:
    """Of two hosts in different networks the one that has left, as far as is known."""
    for host in (link.source, link.target):
        former = former_address(link.seen, host)
        if former is not None and former[0] != chosen_address(link.seen, host):
            return host.name
    return _loner(link)


def _behind_nat(way: Link) -> str | None:
    """The source's network is one that Windows made for it."""
    own = chosen_address(way.seen, way.source)
    if own is None or in_network(way.source, own, way.address) is not False:
        return None
    # Windows' Linux sits behind a NAT of its own, unless it says that it does not.
    if part(way.source, "virtual", "networking") is not None:
        return None
    return "nat" if "microsoft" in str(way.source.facts.get("kernel", "")).lower() else None


def _neighbour(way: Link) -> str | None:
    """The source was told by hand which network card the target has."""
    if way.way("neighbour") != "permanent":
        return None
    others = {
        at(part(host, "routes", way.address), "mac") for host in way.seen.up if host != way.source
    } - {None}
    own = at(part(way.target, "links", way.dials[0].interface), "mac")
    known = {own} if own else others
    return "wrong-neighbour" if not known or way.way("mac") not in known else None


def _other_way(way: Link) -> str | None:
    """What is for a neighbour leaves by an interface that does not lead to it."""
    own, taken = chosen_address(way.seen, way.source), way.way("interface")
    if own is None or taken is None or not in_network(way.source, own, way.address):
        return None
    leads = any(
        name.partition(":")[0] == taken and in_network(way.source, address, way.address)
        for name, address, _ in addresses(way.source)
    )
    return None if leads else "other-way"


def _reverse_path(link: Link) -> Verdict | None:
    """The target would answer by another interface, and therefore drops what comes."""
    source = link.source_address
    taken = part(link.target, "routes", str(source), "interface")
    if source is None or taken is None or link.failed.error != "ETIMEDOUT":
        return None
    arrives = link.dials[0].interface.partition(":")[0]
    filters = part(link.target, "kernel", "rp_filter") or {}
    strict = max(filters.get("all") or 0, filters.get(arrives) or 0) == 1
    return Verdict("reverse-path", link.target.name, link) if strict and taken != arrives else None


def _silence(link: Link) -> Verdict | None:
    """The target does not answer the question for its network card."""
    if link.way("neighbour") not in SILENT or link.failed.error == "ECONNREFUSED":
        return None
    return _apart(link, "silent-neighbour")


def _apart(link: Link, otherwise: str) -> Verdict:
    """Two hosts that do not reach each other, though perhaps both reach their access point."""
    gateways = (part(each, "gateway", "neighbour") for each in (link.source, link.target))
    isolated = all(each in ANSWERED for each in gateways)
    return Verdict("client-isolation" if isolated else otherwise, _loner(link), link)


def _loner(link: Link) -> str:
    """Of the two the one that reaches nobody; where that tells nothing, the later in the fleet, so
    that both directions are one finding.
    """
    alone = [
        host.name
        for host in link.seen.up
        if host in (link.source, link.target)
        and not any(
            reached(each)
            for each in link.seen.dials
            if each.chosen and host.name in (each.source, each.target)
        )
    ]
    ordered = [host.name for host in link.seen.up if host in (link.source, link.target)]
    return (alone or ordered)[-1]


def _some_pass(link: Link) -> Verdict | None:
    """Some high ports are open, some are not."""
    if not any(map(reached, link.ephemeral)):
        return None
    closed = {each.port for each in link.ephemeral if not reached(each)}
    # A limit on new connections hits whoever comes late, at a port that was open before.
    by_chance = limits_rate(part(link.target, "firewall")) or any(
        reached(each) and each.port in closed
        for each in link.seen.dials
        if each.target == link.target.name and each.chosen
    )
    return Verdict("connection-rate" if by_chance else "firewall-range", link.target.name, link)


def _between(link: Link) -> Verdict | None:
    """A router or a NAT stands between them."""
    own = chosen_address(link.seen, link.source)
    tunnel = interface_kind(link.target, link.dials[0].interface) == "vpn"
    if own is None or tunnel or in_network(link.source, own, link.address) is not False:
        return None
    return Verdict("router-between", link.target.name, link)


def _outbound(link: Link) -> Verdict | None:
    """The source's own firewall, as far as that can be told."""
    told = drops_outgoing(part(link.source, "firewall"))
    # Nothing on the target could keep it out, and the way itself is open.
    no_other = is_off(part(link.target, "firewall")) and link.back() is None
    if told or no_other or (told is None and _alone_in_failing(link)):
        return Verdict("firewall-out", link.source.name, link)
    return None


def _alone_in_failing(link: Link) -> bool:
    """Whether the source reaches nobody, while all others reach each other and it."""
    failed = failing(link.seen)
    mine = [each for each in failed if each.source == link.source]
    return len(link.seen.up) > 2 and failed == mine and len(mine) == len(link.seen.up) - 1


def _rejected(link: Link) -> Verdict | None:
    """The target was reached, and its answer is no."""
    error = link.failed.error
    if error == "ECONNREFUSED" or error in _UNREACHABLE:
        return Verdict("firewall-reject", link.target.name, link)
    return None


def _no_firewall(link: Link) -> Verdict | None:
    """Silence both ways, although neither has a firewall."""
    if link.failed.error != "ETIMEDOUT" or link.back() is None or link.rendezvous_passed:
        return None
    if not all(is_off(part(each, "firewall")) for each in (link.source, link.target)):
        return None
    return _apart(link, "lost-between")


def _dropped(link: Link) -> Verdict | None:
    """No answer at all."""
    if link.failed.error != "ETIMEDOUT":
        return None
    check = "firewall-ephemeral" if link.rendezvous_passed else "firewall-drop"
    return Verdict(check, link.target.name, link)


_RULES: tuple[Callable[[Link], Verdict | None], ...] = (
    _hidden,
    _impostor,
    _nothing_left,
    _either(_netmask),
    _either(_route),
    _either(_neighbour),
    _either(_other_way),
    _silence,
    _reverse_path,
    _windows_firewall,
    _some_pass,
    _either(_behind_nat),
    _outbound,
    _between,
    _rejected,
    _no_firewall,
    _dropped,
)

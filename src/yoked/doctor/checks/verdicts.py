"""Why a link fails: one cause for each, decided by the first rule that fits.

The checks of ways and firewalls each tell the verdicts that bear their name, so no link is told
twice, and none that fails goes untold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from yoked.doctor.checks.blame import Blame, blame, blame_for_silent_cards, diversion, passes_as
from yoked.doctor.checks.broadcasts import comes
from yoked.doctor.checks.links import NO_DESCRIPTORS, USED_UP, Link, failing, once, reached
from yoked.doctor.checks.path import Cause, cause_of
from yoked.doctor.checks.query import (
    ANSWERED,
    SILENT,
    addresses,
    at,
    chosen_address,
    chosen_device,
    former_address,
    in_network,
    interface_kind,
    interface_of,
    mapping,
    part,
)
from yoked.doctor.firewalls import limits_rate
from yoked.fleet.enclosed import enclosed_by
from yoked.records.examination import Examination, HostSeen

# What a host's own kernel answers when a route forbids the way.
# Source: fib_props in Linux's net/ipv4/fib_semantics.c.
FORBIDDEN = {"EACCES": "prohibit", "EINVAL": "blackhole", "EHOSTUNREACH": "unreachable"}
# Anything else that it says to a question for the way is not about routes.
_NO_WAY = frozenset({"ENETUNREACH", *FORBIDDEN})
# How the kernel knows a neighbour that somebody told it. On a tunnel nobody is asked for a card.
BY_HAND = frozenset({"permanent", "noarp"})
# That nobody hears the other is no cause.
_UNEXPLAINED = frozenset({"dial-failed", "lost-between", "silent-neighbour", "client-isolation",
                          "router-between"})  # fmt: skip
_SOURCE_PORT = re.compile(r"\b(tcp|th) sport\b")
_UNREACHABLE = frozenset({"EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "ENONET"})


@dataclass(frozen=True)
class Verdict:
    """A link that fails. check: the one that tells it; host: the one to mend; blame: what keeps
    packets back there, where that is it.
    """

    check: str
    host: str
    link: Link
    blame: Blame | None = None


@once
def verdicts(seen: Examination) -> list[Verdict]:
    """One for each link that fails."""
    found = [_verdict(link) for link in failing(seen)]
    known = {each.host for each in found
             if each.check == "dial-failed" and _cause(each.link).host == each.host}  # fmt: skip
    return [_as_elsewhere(each, known) for each in found]


def _as_elsewhere(verdict: Verdict, known: set[str]) -> Verdict:
    """Where both ends have what can do it, that one which does it on other links. known: hosts that
    alone do.
    """
    if not known or verdict.check not in _UNEXPLAINED or _cause(verdict.link).host is not None:
        return verdict
    guilty = [name for name in verdict.link.name if name in known]
    if len(guilty) != 1 or not _cause(verdict.link).words:
        return verdict
    return Verdict("dial-failed", guilty[0], verdict.link)


def _cause(link: Link) -> Cause:
    return cause_of(link.seen, link.failed, "silent")


def _verdict(link: Link) -> Verdict:
    told = (rule(link) for rule in _RULES)
    found = next(filter(None, told), None) or Verdict("dial-failed", link.target.name, link)
    guessed = found.blame is not None and not found.blame.proven
    withheld = found.blame is not None and found.blame.withheld
    if found.check in _UNEXPLAINED or guessed or withheld:
        cause = _cause(link)
        # That a kernel did not send is known without, and not why.
        if cause.host is not None and (cause.kinds or not withheld):
            return Verdict("dial-failed", cause.host, link)
    return found


def _first_address(link: Link) -> Verdict | None:
    """Gloo takes the first address of an interface, and a later one is in the source's network."""
    later = address_behind(link)
    return None if later is None else Verdict("other-network", link.target.name, link)


def address_behind(link: Link) -> str | None:
    """The address of the target's interface, behind that of the run, which is in a network of the
    source's; None: there is none, or that of the run is in one too.
    """
    interface = link.dials[0].interface
    own = [address for name, address, _ in addresses(link.target) if name == interface]
    networks = [mine for _, mine, _ in addresses(link.source)]

    def is_near(address: str) -> bool:
        return any(in_network(link.source, mine, address) for mine in networks)

    if link.address not in own or is_near(link.address):
        return None
    return next(filter(is_near, own[own.index(link.address) + 1 :]), None)


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
    if not foreign:
        return None
    guilty = diversion(link)
    return Verdict("other-answers", guilty.host if guilty else link.target.name, link, guilty)


def _other_card(link: Link) -> Verdict | None:
    """What is for one of the two goes to a network card that it does not have."""
    for way in both_ways(link):
        if strange_card(way) is not None:
            return Verdict("other-answers", way.target.name, link)
    return None


def strange_card(way: Link) -> str | None:
    """The network card that the source takes for the target's, and is none of it; None: it is, or
    nobody knows: what hands on frames, as a repeater does, may give all of them its own.
    """
    own, taken = cards_of(way.target), way.way("mac")
    here = chosen_address(way.seen, way.source)
    neighbours = here is not None and in_network(way.source, here, way.address)
    if way.way("neighbour") not in ANSWERED or way.way("gateway") or not neighbours:
        return None
    if not own or not taken or taken in own:
        return None
    others = [host for host in way.seen.up if host not in (way.source, way.target)]
    known = {at(part(host, "routes", way.address), "mac") for host in others}
    anothers = any(taken in cards_of(host) for host in others)
    return str(taken) if anothers or known & own else None


def cards_of(host: HostSeen) -> set[str]:
    """The hardware addresses of a host."""
    links = mapping(part(host, "links")).values()
    return {str(mac) for each in links if (mac := at(each, "mac"))}


def _nothing_left(link: Link) -> Verdict | None:
    """The source has no port, or no descriptor, to dial with."""
    error = link.failed.error
    if error in USED_UP:
        return Verdict("port-range", link.source.name, link)
    return Verdict("open-files", link.source.name, link) if error in NO_DESCRIPTORS else None


def both_ways(link: Link) -> Iterator[Link]:
    """A link, and the way back, as far as anybody dialled there."""
    yield link
    towards = (each for each in link.seen.dials if each.target == link.source.name)
    if dials := tuple(each for each in towards if each.chosen):
        yield Link(link.seen, link.target, link.source, dials)


def _either(rule: Callable[[Link], str | None]) -> Callable[[Link], Verdict | None]:
    """A rule about the way out of a host, asked of both: an answer needs a way back."""

    def asked(link: Link) -> Verdict | None:
        for each in both_ways(link):
            check = rule(each)
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
    if error not in _NO_WAY:
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
    if way.way("neighbour") not in BY_HAND:
        return None
    others = {
        at(part(host, "routes", way.address), "mac") for host in way.seen.up if host != way.source
    } - {None}
    own = at(part(way.target, "links", way.dials[0].interface), "mac")
    known = {own} if own else others
    return "wrong-neighbour" if not known or way.way("mac") not in known else None


def _other_way(way: Link) -> str | None:
    """What is for a neighbour leaves by an interface, or a router, that does not lead to it."""
    own, taken = chosen_address(way.seen, way.source), way.way("interface")
    if own is None or taken is None or not in_network(way.source, own, way.address):
        return None
    if strays(way) or way.way("gateway") is not None:
        return "other-way"
    places = [
        name.partition(":")[0]
        for name, address, _ in addresses(way.source)
        if in_network(way.source, address, way.address)
    ]
    if taken not in places:
        return "other-way"
    # Two interfaces have addresses of one network, as a bridge to containers may, and nobody
    # answers at that which the kernel takes.
    meant = interface_of(way.source, own)
    return "other-way" if taken != meant and way.way("neighbour") in SILENT else None


def strays(way: Link) -> list[str]:
    """Of a route with several next hops the interfaces that do not lead to a neighbour."""
    own = chosen_address(way.seen, way.source)
    meant = interface_of(way.source, own) if own else None
    hops = way.way("hops")
    named = [str(at(each, "interface")) for each in hops] if isinstance(hops, list) else []
    return [each for each in named if meant in named and each != meant]


def _strange_source(link: Link) -> Verdict | None:
    """The source's kernel sends from an address that the target has no way to."""
    own, taken = chosen_address(link.seen, link.source), link.way("source")
    if own is None or taken in (None, own) or not in_network(link.source, own, link.address):
        return None
    theirs = [address for _, address, _ in addresses(link.target)]
    if any(in_network(link.target, each, str(taken)) for each in theirs):
        return None
    return Verdict("wrong-source", link.source.name, link)


def _unknown_source(link: Link) -> Verdict | None:
    """A rule of one end knows the other by another of its addresses."""
    guilty = _blame_of_filter(link)
    if guilty is None or guilty.direction != "in" or not guilty.found or not guilty.found[0].sure:
        return None
    sender = link.source if guilty.host == link.target.name else link.target
    known = known_address(link, sender)
    return Verdict("wrong-source", sender.name, link, guilty) if known else None


def known_address(link: Link, sender: HostSeen) -> tuple[str, str] | None:
    """(from which address one end sends, from which of its addresses the other's rules would let it
    in, which is in the other's network); None: there is no such one.
    """
    ends = (link.source_address, link.address)
    taken, theirs = ends if sender == link.source else ends[::-1]
    if taken is None or theirs is None:
        return None
    getter = link.target if sender == link.source else link.source
    interface = interface_of(sender, taken)
    for name, own, _ in addresses(sender):
        near = in_network(sender, own, theirs) and name.partition(":")[0] == interface
        if near and own != taken and passes_as(link, getter, own):
            return taken, own
    return None


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


def _odd(link: Link) -> Verdict | None:
    """Something else than a rule of a firewall drops packets on the way, on one host."""
    if link.failed.error not in ("ETIMEDOUT", "EHOSTUNREACH"):
        return None
    guilty, cause = blame(link), cause_of(link.seen, link.failed, "silent", known=True)
    by_rule = guilty is not None and guilty.proven and (guilty.found or guilty.ipsec)
    # That it did not send is known without, and not why.
    if by_rule or cause.host is None or not cause.kinds:
        return None
    return Verdict("dial-failed", cause.host, link)


def _silence(link: Link) -> Verdict | None:
    """The target does not answer the question for its network card."""
    if link.way("neighbour") not in SILENT or link.failed.error == "ECONNREFUSED":
        return None
    if guilty := blame_for_silent_cards(link):
        return Verdict("firewall-drop", guilty.host, link, guilty)
    return _apart(link, "silent-neighbour")


def _apart(link: Link, otherwise: str) -> Verdict:
    """Two hosts that do not reach each other, though perhaps both reach their access point."""
    isolated = all(
        part(each, "gateway", "neighbour") in ANSWERED
        # A tunnel's packets fail for reasons of its own.
        and part(each, "gateway", "interface") == chosen_device(link.seen, each)
        for each in (link.source, link.target)
    )
    # An access point that keeps its clients apart hands on nothing at all.
    isolated = isolated and not comes(link.source, link.target)
    return Verdict("client-isolation" if isolated else otherwise, _loner(link), link)


def _loner(link: Link) -> str:
    """Of the two the one that reaches nobody, or has a part in more links that fail; where that
    tells nothing, the later in the fleet, so that both directions are one finding.
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
    count = Counter(name for each in failing(link.seen) for name in each.name)
    most = max(count[name] for name in ordered)
    return (alone or [name for name in ordered if count[name] == most])[-1]


def by_source(guilty: Blame) -> bool:
    """Whether its rules ask from which port a connection comes: that decides, and no chance."""
    return bool(guilty.found) and all(_SOURCE_PORT.search(each.rule) for each in guilty.found)


def _some_pass(link: Link) -> Verdict | None:
    """Some high ports are open, some are not."""
    guilty = blame(link)
    if guilty is None or guilty.direction == "out" or not any(map(reached, link.ephemeral)):
        return None
    closed = {each.port for each in link.ephemeral if not reached(each)}
    # A limit on new connections hits whoever comes late, at a port that was open before.
    told = part(link.seen.host(guilty.host), "firewall")
    by_chance = limits_rate(told, guilty.found) or any(
        reached(each) and each.port in closed
        for each in link.seen.dials
        if each.target == link.target.name and each.chosen
    )
    check = "connection-rate" if by_chance and not by_source(guilty) else "firewall-range"
    return Verdict(check, guilty.host, link, guilty)


def _between(link: Link) -> Verdict | None:
    """A router or a NAT stands between them."""
    own = chosen_address(link.seen, link.source)
    tunnel = interface_kind(link.target, link.dials[0].interface) == "vpn"
    if own is None or tunnel or in_network(link.source, own, link.address) is not False:
        return None
    return Verdict("router-between", link.target.name, link)


def _outbound(link: Link) -> Verdict | None:
    """A host's own rules, or its kernel, let nothing out."""
    guilty = _blame_of_filter(link)
    if guilty is None or guilty.direction != "out":
        return None
    return Verdict("firewall-out", guilty.host, link, guilty)


def _blame_of_filter(link: Link) -> Blame | None:
    """Who is to blame for silence, or for a refusal."""
    error = link.failed.error
    filtered = error in ("ETIMEDOUT", "ECONNREFUSED", "ESRCH") or error in _UNREACHABLE
    return blame(link) if filtered else None


def _rejected(link: Link) -> Verdict | None:
    """It was reached, and the answer is no."""
    guilty = _blame_of_filter(link)
    if guilty is None or link.failed.error in ("ETIMEDOUT", "ESRCH"):
        return None
    return Verdict("firewall-reject", guilty.host, link, guilty)


def _dropped(link: Link) -> Verdict | None:
    """No answer at all."""
    if link.failed.error != "ETIMEDOUT":
        return None
    guilty = _blame_of_filter(link)
    if guilty is None:
        # Neither host has a rule against it. What the kernel knows of a card may be of long ago.
        if (cards := blame_for_silent_cards(link)) and cards.found[0].sure:
            return Verdict("firewall-drop", cards.host, link, cards)
        partly = any(map(reached, link.ephemeral))
        return None if partly else _apart(link, "lost-between")
    only_high = link.rendezvous_passed and not guilty.answers
    check = "firewall-ephemeral" if only_high else "firewall-drop"
    return Verdict(check, guilty.host, link, guilty)


_RULES: tuple[Callable[[Link], Verdict | None], ...] = (
    _first_address,
    _hidden,
    _impostor,
    _nothing_left,
    _either(_netmask),
    _either(_route),
    _either(_neighbour),
    _other_card,
    _either(_other_way),
    _strange_source,
    _unknown_source,
    _odd,
    _silence,
    _reverse_path,
    _windows_firewall,
    _some_pass,
    _either(_behind_nat),
    _outbound,
    _between,
    _rejected,
    _dropped,
)

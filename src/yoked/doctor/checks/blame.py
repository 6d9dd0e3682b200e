"""Who keeps a connection from coming about, as far as there is proof on that host.

The first packet passes rules of both hosts, and so does the answer to it. A host is blamed for a
rule that refuses one of them, or because its own kernel says that it did not send. Who got what
tells which of these places can be meant. Where rules cannot be read, the likeliest is named, and it
is said that nobody could look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yoked.doctor.checks.devices import is_bridged, on_the_way
from yoked.doctor.checks.links import Link, failing, reached
from yoked.doctor.checks.query import at, chosen_device, mapping, part
from yoked.doctor.firewalls import cards_refused, changing, drops_outgoing, refusals
from yoked.doctor.ipsec import Policy, policy_against
from yoked.doctor.packets import CONFIRMS, DATA, OPENED, Packet
from yoked.doctor.ruleset import Direction, Suspect
from yoked.records.examination import Dial, Examination, HostSeen

# What Linux picks ports from, where a host does not tell.
_USUAL_PORTS = (32_768, 60_999)
# What a kernel answers where an IPsec policy has no key, and nobody is there who would make one.
_NO_KEY = "ESRCH"
_HOME = "127.0.0.1"
_ANY = (1, 65_535)
# What comes behind the first packet of a connection has one of these.
_LATER = (OPENED, DATA, CONFIRMS)
_CARD_TYPES = ("nd-neighbor-solicit", "nd-neighbor-advert")
# Over a wire a refusal takes longer.
_AT_ONCE_S = 0.0005


@dataclass(frozen=True)
class Blame:
    """What is in the way on a host. direction: of what it keeps back there. answers: that is the
    answer to a connection. found: the rules that do it. ipsec: a policy of IPsec does, and policy:
    which. by_library: a library refuses, of these libraries that its programs load. data: it is
    what is said on a connection that has come about. proven: False: nobody could look.
    """

    host: str
    direction: Direction
    answers: bool = False
    found: tuple[Suspect, ...] = ()
    ipsec: bool = False
    policy: Policy | None = None
    by_library: bool = False
    libraries: tuple[str, ...] = ()
    data: bool = False
    proven: bool = True

    @property
    def withheld(self) -> bool:
        """Whether its kernel says that it did not send, and nothing is known that does it."""
        known = self.found or self.ipsec or self.by_library
        return self.proven and self.direction == "out" and not known


@dataclass(frozen=True)
class _Passage:
    """Where a packet passes rules. peer: the address of the other host."""

    host: HostSeen
    direction: Direction
    packet: Packet
    peer: str

    def blame(self, found: Sequence[Suspect] = (), **more: Any) -> Blame:
        """The cause in this passage. more: other fields of Blame."""
        says = bool(self.packet.flags)
        return Blame(
            self.host.name, self.direction, self.packet.answer, tuple(found), data=says, **more
        )


def blame(link: Link) -> Blame | None:
    """What is in the way of a link; None: neither host is, as far as all rules tell."""
    if of_its_own := _library(link):
        return of_its_own
    places = [(place, _rules(link, place)) for place in _passages(link)]
    guilty = [(place, found) for place, found in places if found]
    for place, found in places:
        withheld = _withheld(link, place, found)
        # What the kernel counted may have been for others, where a rule refuses these packets.
        if withheld and (withheld.ipsec or not guilty):
            return withheld
    if guilty:
        place, found = min(guilty, key=lambda each: not each[1][0].sure)
        return place.blame(found)
    for place, _ in places:
        # What comes in as it is, and was to come encrypted.
        has_key = at(part(place.host, "routes", place.peer), "unkeyed") is False
        if place.direction == "in" and not has_key and (policy := _policy(place)):
            return place.blame(ipsec=True, policy=policy)
    unread = [place for place, found in places if found is None]
    return _likeliest(link, unread) if unread else None


def passes_as(link: Link, getter: HostSeen, own: str) -> bool:
    """Whether the rules of one end would let in what the other sends, were it from this address;
    False: they would not, or nobody could look.
    """
    comes_in = [each for each in _passages(link) if (each.host, each.direction) == (getter, "in")]
    packets = [replace(each.packet, source=own) for each in comes_in]
    told = part(getter, "firewall")
    return bool(packets) and all(refusals(told, each, "in") == [] for each in packets)


def diversion(link: Link) -> Blame | None:
    """The rule of either host by which something else gets what is for the target's listener; None:
    no rule that was read does it.
    """
    for place in _passages(link):
        rules = () if place.packet.answer else _rules(link, place) or ()
        if found := [each for each in rules if each.leads_away]:
            return place.blame(found)
    return None


def blame_for_silent_cards(link: Link) -> Blame | None:
    """The rule of either host that keeps them from asking each other for their network cards."""
    if ":" in link.address:
        for place in _card_passages(link):
            found = refusals(part(place.host, "firewall"), place.packet, place.direction)
            # What only may refuse them is there on many hosts, and lets them pass.
            if found and found[0].sure:
                return place.blame(found)
        return None
    for host in (link.target, link.source):
        if found := cards_refused(part(host, "firewall")):
            return Blame(host.name, "in", found=tuple(found))
    return None


def _card_passages(link: Link) -> Iterator[_Passage]:
    """Where the questions for network cards of IPv6 pass, and the answers to them."""
    own, other = str(link.source_address), link.address
    ways = ((link.source, own, link.target, other), (link.target, other, link.source, own))
    for asks in _CARD_TYPES:
        for sender, mine, getter, theirs in ways:
            sides: tuple[tuple[HostSeen, Direction], ...] = (sender, "out"), (getter, "in")
            for host, direction in sides:
                packet = Packet(mine, theirs, _ANY, _ANY, _interface(link, host), asks_card=asks)
                yield _Passage(host, direction, _through(packet, host), theirs)


def blame_by_rules(seen: Examination, dial: Dial, words: re.Pattern[str]) -> Iterator[Blame]:
    """The rules of either host that refuse some data of a link, of those with such words."""
    for place in _data_passages(seen, dial):
        rules = refusals(part(place.host, "firewall"), place.packet, place.direction)
        found = [each for each in rules or () if words.search(each.rule)]
        if found:
            yield place.blame(found)


def changed_by_rules(seen: Examination, dial: Dial, *, begins: bool) -> Iterator[Blame]:
    """The rules of either host that change packets of a link, or hand them to others; each once.
    begins: of the first packets of a connection alone.
    """
    passages = [*_data_passages(seen, dial, answer=False)]
    if not begins:
        passages += _data_passages(seen, dial)
    yield from _changed(passages)


def changed_at_home(host: HostSeen) -> Iterator[Blame]:
    """The same, of what a host sends to itself."""
    ways = (False, True)
    packets = [
        Packet(_HOME, _HOME, _ANY, _ANY, "lo", each, flags=_LATER if each else ()) for each in ways
    ]
    directions: tuple[Direction, ...] = ("out", "in")
    yield from _changed(
        [_Passage(host, direction, each, _HOME) for each in packets for direction in directions]
    )


def _changed(passages: Sequence[_Passage]) -> Iterator[Blame]:
    told: set[tuple[str, Suspect]] = set()
    for place in passages:
        for rule in changing(part(place.host, "firewall"), place.packet, place.direction):
            if (place.host.name, rule) not in told:
                told.add((place.host.name, rule))
                yield place.blame([rule])


def _data_passages(seen: Examination, dial: Dial, *, answer: bool = True) -> Iterator[_Passage]:
    """Where what a dial sends passes, and what confirms it. answer: of a connection that stands."""
    source, target = seen.host(dial.source), seen.host(dial.target)
    own, other = str(dial.source_address), dial.address
    mine, theirs = _ports_of(source), (dial.port, dial.port)
    ways = (
        (source, target, (own, other, mine, theirs)),
        (target, source, (other, own, theirs, mine)),
    )
    for number, (first, second, ends) in enumerate(ways):
        # What comes back to the first packet is an answer to it.
        is_answer = answer or number > 0
        flags = (DATA, CONFIRMS) if answer else ()
        leaves, comes = (
            _through(Packet(*ends, chosen_device(seen, host), is_answer, flags=flags), host)
            for host in (first, second)
        )
        yield _Passage(first, "out", leaves, ends[1])
        yield _Passage(second, "in", comes, ends[0])


def _through(packet: Packet, host: HostSeen) -> Packet:
    """A packet with what its frame goes through on a host."""
    way = on_the_way(host, packet.interface)
    below = tuple(name for name, comes_in in way.items() if not comes_in)
    behind = is_bridged(host, [name for name, comes_in in way.items() if comes_in])
    asked = f"net/bridge/bridge-nf-call-{'ip6' if packet.is_six else 'ip'}tables"
    forwarded = behind and asked in mapping(part(host, "settings"))
    return replace(packet, below=below[1:], bridged=is_bridged(host, way), forwarded=forwarded)


def _ports_of(host: HostSeen) -> tuple[int, int]:
    """Those that its kernel picks from."""
    low, high = (part(host, "ports", "range") or _USUAL_PORTS)[:2]
    return low, high


def _library(link: Link) -> Blame | None:
    """What the source's programs load refuses for them: no kernel refuses a datagram's way."""
    if link.failed.error != "ECONNREFUSED":
        return None
    environment = part(link.source, "environment", "LD_PRELOAD")
    told = [*(part(link.source, "preload") or ()), *str(environment or "").split(":")]
    libraries = tuple(each for each in told if each)
    at_once = link.failed.took_s is not None and link.failed.took_s < _AT_ONCE_S
    if link.way("error") == "ECONNREFUSED" or (libraries and at_once):
        return Blame(link.source.name, "out", by_library=True, libraries=libraries)
    return None


def _passages(link: Link) -> Iterator[_Passage]:
    """The places at which a packet of a link could be lost, by what is known of it."""
    dial, source, target = link.failed, link.source, link.target
    own, other = str(link.source_address), link.address
    low, high = _ports_of(source)
    dialled = (dial.port, dial.port)

    def place(
        host: HostSeen, direction: Direction, *, answer: bool, flags: tuple[int, ...] = ()
    ) -> _Passage:
        interface = _interface(link, host)
        packet = (
            Packet(other, own, dialled, (low, high), interface, answer=True, flags=flags)
            if answer
            else Packet(own, other, (low, high), dialled, interface, bool(flags), flags=flags)
        )
        peer = other if host == source else own
        return _Passage(host, direction, _through(packet, host), peer)

    if dial.opened:
        # What begins a connection passed, and so did the answer to it.
        for flags in ((DATA,), (CONFIRMS,)):
            yield place(source, "out", answer=False, flags=flags)
            yield place(target, "in", answer=False, flags=flags)
            yield place(target, "out", answer=True, flags=flags)
            yield place(source, "in", answer=True, flags=flags)
        return
    if dial.arrived is not True or dial.arrived_from is not None:
        yield place(source, "out", answer=False)
        if dial.arrived is not True:
            yield place(target, "in", answer=False)
    # Only what came is answered; and who is refused has got an answer.
    if dial.arrived is not False and dial.error == "ETIMEDOUT":
        yield place(target, "out", answer=True)
        yield place(source, "in", answer=True)


def _interface(link: Link, host: HostSeen) -> str:
    """The device by which a host reaches the other."""
    taken = link.way("interface") if host == link.source else None
    return str(taken or chosen_device(link.seen, host))


def _rules(link: Link, place: _Passage) -> list[Suspect] | None:
    """The rules there that refuse the packet; None: it is not known."""
    told = part(place.host, "firewall")
    found = refusals(told, place.packet, place.direction)
    if found is None and place.direction == "out":
        if drops_outgoing(told) is False:
            return []
        # Its kernel sent all of it, whatever the rules are.
        if link.failed.unsent is False and not place.packet.answer:
            return []
    return found


def _withheld(link: Link, place: _Passage, found: list[Suspect] | None) -> Blame | None:
    """What the host's own kernel says: that it did not send, or why it would not."""
    if place.direction != "out":
        return None
    way = part(place.host, "routes", place.peer)
    unkeyed, policy = at(way, "unkeyed"), _policy(place)
    no_key = unkeyed or _NO_KEY in (at(way, "error"), link.failed.error)
    if no_key or (policy and unkeyed is None):
        return place.blame(ipsec=True, policy=policy)
    if place.packet.answer or found:
        return None
    unsent = link.failed.unsent
    refused = link.failed.error == "EPERM" or (unsent is None and at(way, "sending") == "EPERM")
    # Words of a tool whose rules have no other form.
    says_so = found is None and drops_outgoing(part(place.host, "firewall"))
    return place.blame() if unsent or refused or says_so else None


def _policy(place: _Passage) -> Policy | None:
    told, packet = part(place.host, "firewall"), place.packet
    return policy_against(told, packet.source, packet.target, place.direction)


def _likeliest(link: Link, unread: list[_Passage]) -> Blame:
    """Of places whose rules nobody could read the one that is most often meant."""
    by = {(each.host.name, each.direction, each.packet.answer): each for each in unread}
    source, target = link.source.name, link.target.name
    goes_out, comes_in = by.get((source, "out", False)), by.get((target, "in", False))
    leaves, returns = by.get((target, "out", True)), by.get((source, "in", True))
    # Nobody else is in trouble, or nothing on the target could keep it out.
    alone = _alone_in_failing(link) or not (comes_in or (returns and link.back()))
    if goes_out and alone:
        return goes_out.blame(proven=False)
    if comes_in:
        return comes_in.blame(proven=part(link.target, "firewall", "active") is True)
    if returns and leaves:
        heard = any(each.source == source and reached(each) for each in link.seen.dials)
        return (leaves if heard else returns).blame(proven=False)
    return (returns or leaves or unread[0]).blame(proven=False)


def _alone_in_failing(link: Link) -> bool:
    """Whether the source reaches nobody, while all others reach each other and it."""
    failed = failing(link.seen)
    mine = [each for each in failed if each.source == link.source]
    return len(link.seen.up) > 2 and failed == mine and len(mine) == len(link.seen.up) - 1

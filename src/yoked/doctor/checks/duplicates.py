"""Two machines with one address, of the network or of the card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from yoked.doctor.check import Match, check
from yoked.doctor.checks.interfaces import LINKS, NAMES, link_of, several
from yoked.doctor.checks.query import (
    addresses,
    at,
    chosen_address,
    chosen_interface,
    former_address,
    host_of_address,
    in_network,
    interface_kind,
    mapping,
    part,
    prefix_of,
)
from yoked.doctor.checks.tables import taken_addresses, taken_for_own
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import drop_address, replace_address
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import listed_words

# How ssh fails where frames for a host go astray.
_SILENT = frozenset({"timeout", "unreachable", "other"})


@check(
    "same-address",
    question="Does each host have an address of its own?",
    reads=("interfaces",),
    severity="error",
    saw={
        "network": "{names:list} have one address, {address}",
        "route": "{host} takes {address}, the address of {other}, for its own: by the route "
        "{route}",
        "card": "the network cards of {names:list} have one address, {address}",
        "met": "others find {names:list} at one network card, {address}, which is "
        "{interface} of {owner}: two cards have one address, or {owner} answers for the others",
        "both": "others find {names:list}, which let nobody in, at one network card, "
        "{address}: two cards have one address, or one machine answers for both",
    },
    why="packets for one reach the other, by chance and in turns",
    symptom="Connections fail or reach the wrong machine, now and then.",
    cause="Two machines were given one address: a copied disk image or virtual machine (its card's "
    "address, or the machine-id by which DHCP knows it, was copied too), a fixed "
    "address inside the DHCP server's range. Or one takes it for its own by a route of the table "
    "`local`.",
    fix="Takes the address from the host that is not to have it, and gives it back its "
    "own, as yoked.toml has it.",
    # Who comes in by ssh may meet the wrong machine, and takes it for a changed one.
    explains=(
        *LINKS,
        *NAMES,
        "wrong-neighbour",
        "ssh-host-key",
        "ssh-denied",
        "ssh-refused",
        "ssh-timeout",
        "ssh-other",
    ),
    quick=True,
)
def same_address(seen: Examination) -> Iterator[Match]:
    """An address that the run would use on one host, and that another has too."""
    told: set[str] = set()
    yield from _by_route(seen)
    for lost, name, known in _met_by_ssh(seen):
        told.add(known)
        yield Match(
            (name, lost),
            *_own_address_back(seen, seen.host(name), known),
            how="network",
            names=[name, lost],
            address=known,
        )
    for one, other, mac in _one_card(seen):
        yield Match(
            (other.name, one.name), _own_card(seen, other), how="card",
            names=[one.name, other.name], address=mac,
        )  # fmt: skip
    yield from _met_at_one_card(seen)
    for host in several(seen):
        address = chosen_address(seen, host)
        if address is None or address in told:
            continue
        others = [each for each in host_of_address(seen, address) if each != host.name]
        if not others or interface_kind(host, host.wanted.get("interface")) == "docker":
            continue
        told.add(address)
        names = [host.name, *others]
        wrong = _intruder(seen, address, names)
        yield Match(
            (wrong.name, *(each for each in names if each != wrong.name)),
            *_own_address_back(seen, wrong, address),
            how="network",
            names=names,
            address=address,
        )


def _by_route(seen: Examination) -> Iterator[Match]:
    """Hosts that answer for the address of one that ssh therefore did not reach."""
    for lost in seen.hosts:
        known = lost.wanted.get("address")
        if lost.failure is None or (known is None and lost.failure.kind != "host-key"):
            continue
        for host in seen.up:
            # Where nobody knows the address, one of this network with which ssh met another key.
            own = chosen_address(seen, host)
            for address in [known] if known else taken_addresses(host):
                found = taken_for_own(host, str(address))
                if found is None or not (known or (own and in_network(host, own, address))):
                    continue
                yield Match(
                    (host.name, lost.name),
                    found[1],
                    how="route",
                    address=address,
                    other=lost.name,
                    route=f"`{found[0]}`",
                )


def _met_by_ssh(seen: Examination) -> Iterator[tuple[str, str, str]]:
    """(host, who has its address, the address) where ssh met a machine with another key."""
    for host in seen.hosts:
        address = host.wanted.get("address")
        if address is None or host.failure is None or host.failure.kind != "host-key":
            continue
        for name in host_of_address(seen, str(address)):
            if seen.host(name).wanted.get("address") != address:
                yield host.name, name, str(address)


def _one_card(seen: Examination) -> Iterator[tuple[HostSeen, HostSeen, str]]:
    """Pairs of machines whose network cards, as the run would use them, have one address."""
    first: dict[str, HostSeen] = {}
    for host in several(seen):
        interface = chosen_interface(seen, host)
        mac = at(link_of(host, str(interface).partition(":")[0]), "mac")
        if mac is None or interface_kind(host, interface) not in ("physical", "wireless"):
            continue
        other = first.setdefault(str(mac), host)
        if other != host and other.facts.get("machine") != host.facts.get("machine"):
            yield other, host, str(mac)


def _met_at_one_card(seen: Examination) -> Iterator[Match]:
    """Hosts that ssh does not reach, and that others find at the card of another."""
    silent = {each.name for each in seen.hosts
              if each.failure is not None and each.failure.kind in _SILENT}  # fmt: skip
    at_card: dict[str, list[str]] = {}
    lost = mapping(seen.controller.get("lost"))
    for name, own in lost.items():
        for mac in _met(seen, name, own) if name in silent else ():
            at_card.setdefault(mac, []).append(name)
    for mac, names in at_card.items():
        owner = next((each for each in seen.up if _has_card(each, mac)), None)
        if owner is not None and not _answers_for_others(owner):
            interface = next(_cards(owner, mac))
            look = by_hand(
                owner.name,
                "`ethtool -P {interface}` shows the card's own address, and `ip link set dev "
                "{interface} address` and it sets it; compare `ip link` at the console of {lost}",
                interface=interface,
                lost=listed_words(names),
            )
            yield Match(
                (owner.name, *names), look, how="met", names=[owner.name, *names], address=mac,
                interface=interface, owner=owner.name,
            )  # fmt: skip
        elif owner is None and len(names) > 1 and not _is_between(seen, mac, lost):
            look = by_hand(
                "",
                "compare `ip link` at the consoles of {lost}: a copy of a virtual machine has the "
                "other's address; `ethtool -P INTERFACE` shows the card's own",
                lost=listed_words(names),
            )
            yield Match(names, look, how="both", names=names, address=mac)


def _met(seen: Examination, lost: str, addresses: Sequence[str]) -> set[str]:
    """The cards at which this machine and other hosts find a host."""
    asked = [at(part(host, "routes", each), "mac") for host in seen.up for each in addresses]
    return {str(mac) for mac in (*asked, mapping(seen.controller.get("met")).get(lost)) if mac}


def _cards(host: HostSeen, mac: str) -> Iterator[str]:
    """The interfaces of a host with this address of a card."""
    for name, link in mapping(part(host, "links")).items():
        if at(link, "mac") == mac and interface_kind(host, name) in ("physical", "wireless"):
            yield str(name)


def _has_card(host: HostSeen, mac: str) -> bool:
    return next(_cards(host, mac), None) is not None


def _answers_for_others(host: HostSeen) -> bool:
    """Whether it is set to answer questions for other hosts' network cards."""
    return any("/proxy_arp" in name for name in mapping(part(host, "settings")))


def _is_between(seen: Examination, mac: str, lost: Mapping[str, Sequence[str]]) -> bool:
    """Whether a card is that of a repeater or a router: hosts find others there, too."""
    theirs = {address for own in lost.values() for address in own}
    return any(
        at(way, "mac") == mac
        for host in seen.up
        for address, way in mapping(part(host, "routes")).items()
        if address not in theirs
    )


def _own_card(seen: Examination, host: HostSeen) -> Fix:
    return by_hand(
        host.name,
        "give {interface} of {host} its own: `ethtool -P {interface}` shows it, `ip link set dev "
        "{interface} address` and it sets it",
        interface=chosen_interface(seen, host),
    )


def _intruder(seen: Examination, address: str, names: list[str]) -> HostSeen:
    """Of hosts with one address the one that is not to have it; the last where that is unknown."""
    hosts = [seen.host(name) for name in names]
    for host in reversed(hosts):
        if former_address(seen, host) is not None:
            return host
    return next(
        (host for host in reversed(hosts) if chosen_address(seen, host) != address), hosts[-1]
    )


def _own_address_back(seen: Examination, host: HostSeen, address: str) -> tuple[Fix, ...]:
    """Take an address from a host; where the run would use it, give it its own instead."""
    interface = next(name for name, own, _ in addresses(host) if own == address)
    prefix = prefix_of(host, address)
    if chosen_address(seen, host) != address:
        return (drop_address(host.name, address, prefix, interface),)
    former = former_address(seen, host)
    if former is None:
        return (
            by_hand(
                host.name, "give {interface} of {host} an address of its own", interface=interface
            ),
        )
    return (give_back(host, address, former, interface),)


def give_back(host: HostSeen, today: str, former: tuple[str, int], interface: str) -> Fix:
    """Have an interface give up an address for that which it is to have, and may have already."""
    prefix = prefix_of(host, today)
    if former[0] in [address for name, address, _ in addresses(host) if name == interface]:
        return drop_address(host.name, today, prefix, interface)
    return replace_address(host.name, (today, prefix), former, interface)


CHECKS = (same_address,)

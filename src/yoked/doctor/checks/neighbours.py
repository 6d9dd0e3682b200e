"""Who is at the other end of a way: the right host, another machine, a router, or nobody."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import page
from yoked.doctor.checks.groups import alternative, groups
from yoked.doctor.checks.interfaces import NAMES
from yoked.doctor.checks.reading import (
    addresses,
    at,
    by_hand,
    chosen_address,
    finding,
    listed,
    part,
)
from yoked.doctor.checks.ways import join, network_of, way_check
from yoked.records.examination import Examination, Finding, HostSeen
from yoked.records.shell import listed_words


def _other_answers(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "other-answers"):
        who = {
            dial.answered_by
            for link in group.links
            for dial in link.dials
            if dial.answered_by not in (None, dial.target)
        }
        named = listed(sorted(str(each) for each in who)) or "a machine that is not of the fleet"
        yield finding(
            "other-answers",
            "error",
            group.host.name,
            f"at {group.address}, the address of {group.host.name}, {named} answers: "
            f"{group.evidence}",
            "two machines have that address, or it means another one on each host",
            *(alternative(group) or (by_hand(
                group.host.name, "give {interface} of {host} another address",
                interface=group.interface, host=group.host.name,
            ),)),
            link=group.link,
        )  # fmt: skip


def _nat(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "nat"):
        yield finding(
            "nat",
            "error",
            group.host.name,
            f"{group.host.name} is Linux inside Windows (WSL2), and its address {group.address} is "
            f"behind a NAT: {group.evidence}",
            "it reaches others, but nobody reaches it",
            by_hand(
                group.host.name,
                "in Windows, write `[wsl2]` and `networkingMode=mirrored` into "
                "%UserProfile%\\.wslconfig, then run `wsl --shutdown`",
            ),
            link=group.link,
        )


def _router_between(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "router-between"):
        names = [group.host.name, *(each.name for each in group.peers)]
        nets = [f"{each} of {name}" for name in names for each in _networks(seen.host(name), seen)]
        yield finding(
            "router-between",
            "error",
            names,
            f"a router stands between {listed(nets)}: {group.evidence}",
            "a router that translates addresses, or a guest network, lets connections through in "
            "one direction at most",
            *join(group),
            link=group.link,
        )


def _networks(host: HostSeen, seen: Examination) -> Iterator[str]:
    own = chosen_address(seen, host)
    for _, address, prefix in addresses(host):
        if address == own and prefix is not None:
            yield network_of(address, prefix)


def _silent_neighbour(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "silent-neighbour"):
        names = [group.host.name, *(each.name for each in group.peers)]
        yield finding(
            "silent-neighbour",
            "error",
            names,
            f"{listed(names)} count each other to their network, but no network card answers: "
            f"{group.evidence}",
            "they do not hear each other: a cable, a switch, or two networks with the same numbers",
            *(alternative(group) or (by_hand(
                group.host.name,
                "check the cable of {interface}, and that both are at one switch or router",
                interface=group.interface,
            ),)),
            link=group.link,
        )  # fmt: skip


def _lost_between(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "lost-between"):
        names = [group.host.name, *(each.name for each in group.peers)]
        yield finding(
            "lost-between",
            "error",
            names,
            f"the network cards of {listed(names)} answer each other, neither has a firewall, and "
            f"no connection comes about in either direction: {group.evidence}",
            "something between them drops packets, in one direction at least",
            *(
                alternative(group)
                or (
                    by_hand(
                        "",
                        "plug {names} into one plain switch: rules of a managed switch, a mesh or "
                        "a bridge are what is left",
                        names=listed_words(names),
                    ),
                )
            ),
            link=group.link,
        )


def _client_isolation(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "client-isolation"):
        names = [group.host.name, *(each.name for each in group.peers)]
        router = at(part(group.host, "gateway"), "address")
        yield finding(
            "client-isolation",
            "error",
            names,
            f"{listed(names)} reach the router ({router}), and not each other: {group.evidence}",
            "the access point keeps its clients apart (client or AP isolation, a guest network)",
            *(alternative(group) or (by_hand(
                "",
                "switch isolation off at {router}, or connect {host} by cable",
                router=router, host=group.host.name,
            ),)),
            link=group.link,
        )  # fmt: skip


CHECKS = (
    way_check(
        "other-answers",
        _other_answers,
        "Does the right host answer at every address?",
        page(
            symptom="`Connection refused`, or a handshake that makes no sense: `op.preamble.length "
            "<= op.nbytes`.",
            cause="Another machine has the same address, or the address (172.17.0.1) means each "
            "host's own containers.",
            fix="Takes an interface at which the right host answers; else by hand, another "
            "address.",
        ),
        explains=NAMES,
    ),
    way_check(
        "client-isolation",
        _client_isolation,
        "May clients of one access point speak to each other?",
        page(
            symptom="`No route to host` between two laptops in one wireless network; both surf.",
            cause="Client isolation: the access point hands on nothing between its clients. Guest "
            "networks have it always.",
            fix="By hand: at the access point, or a cable.",
            elsewhere="Clouds: two subnets or security groups without a rule between them.",
        ),
        "health.ways",
        "health.gateway",
    ),
    way_check(
        "lost-between",
        _lost_between,
        "Does what is between the hosts let packets pass?",
        page(
            symptom="`Connection timed out` in both directions, although `ip neighbour` shows both "
            "as reachable.",
            cause="What lies between drops packets, perhaps in one direction alone: then no answer "
            "comes back, and both directions fail.",
            fix="Takes another interface where one works; else by hand.",
            elsewhere="Clouds: a security group or network ACL that is not stateful.",
        ),
        "health.firewall",
        "health.ways",
    ),
    way_check(
        "silent-neighbour",
        _silent_neighbour,
        "Do the network cards of all hosts hear each other?",
        page(
            symptom="`No route to host` after three seconds.",
            cause="Nothing answers on the wire: cable, switch, VLAN, or two networks that have the "
            "same numbers (192.168.1.0/24 at home and at work).",
            fix="By hand, or another interface where there is one that works.",
        ),
        "health.ways",
    ),
    way_check(
        "nat",
        _nat,
        "Is the address of every host one that others can dial?",
        page(
            symptom="`Connection timed out` towards one host only; its own connections work.",
            cause="WSL2 has an address of its own behind Windows.",
            fix="By hand: WSL's mirrored networking gives Linux the addresses of Windows.",
            elsewhere="Docker without `--network host` is the same.",
        ),
        "facts",
        explains=NAMES,
    ),
    way_check(
        "router-between",
        _router_between,
        "Are the hosts in one network?",
        page(
            symptom="`Connection timed out`, often in one direction: the one behind the second "
            "router reaches the others, and not the other way round.",
            cause="Two routers, one behind the other, or a guest network.",
            fix="Takes another interface where one works; else by hand: plug both into the same "
            "router.",
        ),
        "interfaces",
        explains=NAMES,
    ),
)

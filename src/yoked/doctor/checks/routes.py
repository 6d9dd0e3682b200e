"""Routes between hosts: netmasks, neighbours, and who answers at an address."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from ipaddress import ip_interface
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.duplicates import give_back
from yoked.doctor.checks.interfaces import NAMES
from yoked.doctor.checks.link_groups import Group, alternative, groups
from yoked.doctor.checks.path import cause_of, stop_first
from yoked.doctor.checks.query import (
    address_of,
    addresses,
    at,
    chosen_address,
    chosen_interface,
    common_prefix,
    former_address,
    in_network,
    part,
    prefix_of,
    version_of,
)
from yoked.doctor.checks.tables import deciding_route, rules_before
from yoked.doctor.checks.verdicts import BY_HAND, FORBIDDEN, address_behind, known_address, strays
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import (
    FIRST_RULE,
    add_route,
    drop_address,
    forget_broadcast,
    forget_neighbor,
    put_behind,
    replace_address,
    route_by_one,
    route_directly,
    set_route_source,
)
from yoked.doctor.repairs.system import sysctl
from yoked.records.examination import Examination, Fix
from yoked.records.shell import listed_words, shell_line

AFTER = ("rendezvous-port", "mtu", "bulk-stalls", "loss", "jitter", "world-failed")
# What all checks of ways have in common, but where they say otherwise.
check_of_ways = partial(
    check, reads=("dials", "health.routes"), severity="error", explains=AFTER, quick=True
)


@check_of_ways(
    "no-route",
    question="Does every host have a route to the others?",
    saw="{host} has no route to {peer_addresses:list}, although it is in their network: {evidence}",
    why="the kernel does not know by which interface to send",
    symptom="`OSError: [Errno 101] Network is unreachable`.",
    cause="The route of the interface's network is gone: a VPN program or a script removed it.",
    fix="Adds the route that the address should have brought.",
)
def no_route(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "no-route"):
        yield group.match(_own_route(group), peer_addresses=group.peer_addresses)


def _own_route(group: Group) -> Fix:
    """The route that the host's address should have brought."""
    host, own, interface = group.host, group.address, group.interface
    prefix = prefix_of(host, own) if own else None
    if own is None or not prefix:
        return by_hand(host.name, "ip route add NETWORK dev {interface}", interface=interface)
    network = shell_line(
        "{net} dev {interface} src {own}", net=network_of(own, prefix), interface=interface, own=own
    )
    return add_route(host.name, network)


def network_of(address: str, prefix: int) -> str:
    """The network of an address, as `192.168.1.0/24`."""
    own = address_of(address)
    return "" if own is None else str(ip_interface(f"{own}/{prefix}").network)


@check_of_ways(
    "forbidden-route",
    question="Does a route or rule of a host forbid the way to another?",
    saw={
        "kind": "{host} is not to send to {peer_addresses:list}: its kernel says {error}, as for a "
        "route or rule of kind {prohibit}{rule}",
        "first": "{host} is not to send to {peer_addresses:list}: its kernel says {error}, by the "
        "route {taken:list}, which is asked before all others",
    },
    why="a VPN's kill switch, a container network or an old `ip route` forbids the way; "
    "nothing is sent, whatever the firewalls say",
    symptom="`Permission denied`, `Invalid argument` or `No route to host` at once, while "
    "the neighbour answers to others.",
    cause="A route of kind prohibit, blackhole or unreachable, or such a rule in `ip "
    "rule`: a VPN's kill switch forbids the home's own network.",
    fix="Routes straight to the peers, with a rule that is asked before the VPN's. Most "
    "VPN programs have a switch for it: allow the local network. A route of the table `local`, "
    "which is asked before all rules, is deleted.",
    on_cluster="Kubernetes: a network policy, or Calico's blackhole routes.",
)
def forbidden_route(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "forbidden-route"):
        errors = (part(group.host, "routes", each, "error") for each in group.peer_addresses)
        error = str(next(filter(None, errors), "EINVAL"))
        taken = _asked_first(group)
        ends, rule = stop_first(group.host, "routes", "rules")
        yield group.match(
            *ends,
            *_routes_to_peers(group),
            rule=rule,
            how="first" if taken else "kind",
            peer_addresses=group.peer_addresses,
            error=error,
            taken=taken,
            prohibit=FORBIDDEN.get(error, "prohibit"),
        )


def _routes_to_peers(group: Group) -> Iterator[Fix]:
    for address in group.peer_addresses:
        if (decides := deciding_route(group.host, address)) is not None:
            yield decides[1]
            if decides[0].startswith("broadcast "):
                # The kernel keeps the card that it took for everybody's.
                yield forget_broadcast(group.host.name, address, group.interface.partition(":")[0])
            continue
        # One that is asked as early as ours stands before it.
        for entry in rules_before(group.host, address, FIRST_RULE):
            yield from entry.fix
        yield route_directly(group.host.name, address, group.interface)


def _asked_first(group: Group) -> list[str]:
    """The routes to peers that are asked before all others, and lead elsewhere."""
    found = (deciding_route(group.host, each) for each in group.peer_addresses)
    return list(dict.fromkeys(f"`{each[0]}`" for each in found if each is not None))


@check_of_ways(
    "wrong-netmask",
    question="Do all hosts of a network have the same netmask?",
    reads=("dials", "interfaces"),
    saw="{interface} of {host} has {own}/{prefix}: its network leaves out "
    "{peer_addresses:list}, whose networks (/{right}) have it in",
    why="what others send arrives, and no answer comes back",
    symptom="One host reaches nobody, `Network is unreachable`; the others wait in vain "
    "for its answer, `Connection timed out`.",
    cause="A prefix length typed wrongly, such as /30 or /32 for /24.",
    fix="Gives the address the prefix length that the others have, until the next start; "
    "put it right in the network settings too.",
)
def wrong_netmask(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "wrong-netmask"):
        own = str(group.address)
        prefix, right = prefix_of(group.host, own), common_prefix(seen, own, but=group.host.name)
        yield group.match(
            replace_address(group.host.name, (own, prefix), (own, right), group.interface),
            interface=group.interface,
            own=own,
            prefix=prefix,
            peer_addresses=group.peer_addresses,
            right=right,
        )


@check_of_ways(
    "wrong-neighbour",
    question="Does every host know the network cards of the others?",
    saw="{host} was told by hand to use the network card {entries:list}, and nobody answers "
    "there: {evidence}",
    why="every packet goes to a card that is not there",
    symptom="`Connection timed out` or `No route to host` in one direction.",
    cause="A fixed entry in the neighbour table has the MAC of a card that was replaced.",
    fix="Deletes the entry; the kernel then asks.",
)
def wrong_neighbour(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "wrong-neighbour"):
        interface = group.interface.partition(":")[0]
        fixed = {
            each: part(group.host, "routes", each, "mac")
            for each in group.peer_addresses
            if part(group.host, "routes", each, "neighbour") in BY_HAND
        }
        yield group.match(
            *(
                forget_neighbor(group.host.name, each, mac, interface)
                for each, mac in fixed.items()
            ),
            entries=[f"{mac} for {each}" for each, mac in fixed.items()],
        )


@check_of_ways(
    "other-way",
    question="Do packets leave by the interface that leads to the others?",
    saw={
        "interface": "{host} sends what is for {peer_addresses:list} out by {taken:list}, although "
        "it is in their network at {interface}",
        "silent": "{host} sends what is for {peer_addresses:list} out by {taken:list}, where "
        "nobody answers: it has an address of their network there too, beside {interface}",
        "gateway": "{host} sends what is for {peer_addresses:list} to the router {taken:list}, "
        "although it is in their network at {interface}",
        "first": "{host} keeps what is for {peer_addresses:list}, although it is in their network "
        "at {interface}: by the route {taken:list}, which is asked before all others",
        "hops": "{host} has a route with several next hops to {peer_addresses:list}: a part of its "
        "connections leaves by {taken:list}, which does not lead there, beside {interface}",
    },
    why="a VPN that takes all traffic, a rule of `ip rule` or a route of one's own draws it away",
    symptom="`Connection timed out`, only while the VPN is on; or of a part of the connections.",
    cause="A VPN that takes all traffic, or a policy route, draws packets for the home's "
    "own network away. A bridge to containers or a second interface has an address of that "
    "network. A route by hand leads over a router, or has several next hops.",
    fix="Routes straight to the peers, with a rule that is asked before the VPN's; of several next "
    "hops, by that which leads there. A route of the table `local`, which is asked before all "
    "rules, is deleted.",
)
def other_way(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "other-way"):
        ways = {each: part(group.host, "routes", each) for each in group.peer_addresses}
        how, taken = _strayed(group, ways)
        yield group.match(
            *(_by_one_hop(group, ways) if how == "hops" else _routes_to_peers(group)),
            how=how,
            peer_addresses=group.peer_addresses,
            taken=taken,
            interface=group.interface,
        )


def _strayed(group: Group, ways: dict[str, Any]) -> tuple[str, list[str]]:
    """How packets go astray, and by which interfaces or routers."""
    if first := _asked_first(group):
        return "first", first
    own_links = (each for each in group.links if each.source == group.host)
    hops = list(dict.fromkeys(name for link in own_links for name in strays(link)))
    if hops:
        return "hops", hops
    if gateways := sorted({str(at(each, "gateway")) for each in ways.values()} - {"None"}):
        return "gateway", gateways
    taken = sorted({str(at(each, "interface")) for each in ways.values()})
    own = {name.partition(":")[0] for name, address, _ in addresses(group.host)
           for each in group.peer_addresses if in_network(group.host, address, each)}  # fmt: skip
    return ("silent" if own.issuperset(taken) else "interface"), taken


def _by_one_hop(group: Group, ways: dict[str, Any]) -> Iterator[Fix]:
    """Have each route with several next hops lead by the one that is meant."""
    told: set[str] = set()
    for way in ways.values():
        network = f"{at(way, 'network')}/{at(way, 'prefix')}"
        known = at(way, "hops") and at(way, "network") and group.address
        if known and network not in told:
            told.add(network)
            interface = group.interface.partition(":")[0]
            own = str(group.address)
            yield route_by_one(group.host.name, network, interface, own, way["hops"])


@check_of_ways(
    "wrong-source",
    question="Does every host send from an address that the others can answer?",
    saw={
        "": "{host} sends to {peers:list} from {taken}, to which they have no way, although it is "
        "in their network as {own}: {evidence}",
        "rule": "{host} sends to {peers:list} from {taken}, and a firewall there lets it in from "
        "{own}, which it has too: {evidence}; by {rule}",
    },
    why={
        "": "what it sends may arrive, and no answer comes back",
        "rule": "what it begins is dropped there, and what others begin with it works",
    },
    symptom="`Connection timed out` of all that one host begins; what others begin with it works.",
    cause="The route has a `src` that is the address of a VPN, of loopback, or an old one. Or a "
    "network manager gave the host another address beside the one by which rules know it, such as "
    "a random one of IPv6's privacy extensions, and the kernel takes that.",
    fix="Has the route send from the address in that network, until the next start.",
)
def wrong_source(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "wrong-source"):
        known = known_address(group.links[0], group.host) if group.found else None
        if known is not None:
            taken, own = known
            yield group.match(
                *_be_known_as(group, own, taken),
                how="rule",
                peers=[each.name for each in group.peers],
                taken=taken,
                own=own,
                rule=group.found[0].words,
            )
            continue
        own, interface = str(group.address), group.interface.partition(":")[0]
        ways = {each: part(group.host, "routes", each) for each in group.peer_addresses}
        sources = (str(at(each, "source")) for each in ways.values() if at(each, "source"))
        taken = next((each for each in sources if each != own), own)
        yield group.match(
            *_send_from(group, own, interface, taken),
            peers=group.peer_addresses,
            taken=taken,
            own=own,
        )


def _be_known_as(group: Group, own: str, taken: str) -> Iterator[Fix]:
    """Have a host send from an address by which others know it; one that is first on its interface
    is what Gloo takes, too.
    """
    interface = group.interface.partition(":")[0]
    if group.address != taken:
        yield from _send_from(group, own, interface, taken)
    elif version_of(taken) == 4:
        yield _later_first(group, own)
    else:
        yield drop_address(group.host.name, taken, prefix_of(group.host, taken), interface)


def _send_from(group: Group, own: str, interface: str, taken: str) -> Iterator[Fix]:
    prefix = prefix_of(group.host, own)
    networks = dict.fromkeys(
        f"{at(way, 'network')}/{at(way, 'prefix')}"
        if at(way, "network") and at(way, "prefix")
        else network_of(own, prefix or 0)
        for each in group.peer_addresses
        for way in [part(group.host, "routes", each)]
    )
    for network in networks:
        yield set_route_source(group.host.name, network, interface, own, taken)


@check_of_ways(
    "other-network",
    question="Are all hosts in networks that reach each other?",
    reads=("dials", "health.routes", "interfaces"),
    saw={
        "": "{host}, at {address}, and {peers:list} are in different networks: {evidence}",
        "first": "{interface} of {host} has {address} before {later}, and Gloo takes the first "
        "address of an interface: no way leads there from {peers:list}, in whose network {later} "
        "is: {evidence}",
    },
    why={
        "": "packets find no way between the two networks",
        "first": "Gloo is told the name of an interface, and no address: ssh works, and ranks dial "
        "an address that leads nowhere",
    },
    symptom="`Network is unreachable`, or `Connection timed out`, on all links of a host.",
    cause="Its address is of a network that the others have no way to: that of a virtual "
    "machine's NAT (10.0.2.15), of a container, or one from another router. Or the interface has "
    "several addresses, and one of another network, such as a camera's, came first.",
    fix="Puts an address of another network behind the one that the others reach, until the next "
    "start. Gives a host back the address of yoked.toml, where that fits into the network of the "
    "others; otherwise by hand: bridge the virtual machine, use the host's network for "
    "the container (`--network host`).",
    on_cluster="Kubernetes: pods with `hostNetwork: false` on clusters without an overlay.",
    explains=(*NAMES, *AFTER),
)
def other_network(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "other-network"):
        if later := _address_behind(group):
            yield group.match(
                _later_first(group, later),
                how="first",
                interface=group.interface,
                address=group.address,
                later=later,
                peers=[each.name for each in group.peers],
            )
            continue
        yield group.match(
            *_into_their_network(group),
            address=group.address or "no address",
            peers=group.peer_addresses,
        )


def _address_behind(group: Group) -> str | None:
    """That which all peers would reach, behind the first of the host's interface."""
    towards = [each for each in group.links if each.target == group.host]
    found = {address_behind(each) for each in towards}
    return found.pop() if len(found) == 1 else None


def _later_first(group: Group, later: str) -> Fix:
    """Have a later address of the host's interface come first."""
    host, interface = group.host, group.interface
    named = [(each, prefix) for name, each, prefix in addresses(host) if name == interface]
    own = [each for each in named if version_of(each[0]) == 4]
    names = [each for each, _ in own]
    # Linux has an order of its own for those of IPv6.
    if later not in names or group.address not in names:
        return by_hand(
            host.name,
            "have {it} get {later} before {address}, or take {address} away",
            it=interface,
            later=later,
            address=group.address,
        )
    place = names.index(later)
    return put_behind(host.name, own[:place], own[place:], interface)


def _into_their_network(group: Group) -> tuple[Fix, ...]:
    """Mend whichever address is not what it was, else find out anew."""
    for host in (group.host, *group.peers):
        today, interface = chosen_address(group.seen, host), chosen_interface(group.seen, host)
        former = former_address(group.seen, host)
        if today is None or interface is None or former is None or former[0] == today:
            continue
        return (give_back(host, today, former, interface),)
    return join(group)


def join(group: Group) -> tuple[Fix, ...]:
    """Another interface where one works; else a person's hand."""
    names = listed_words(group.names)
    connect = by_hand(group.host.name, "connect {names} to the same network", names=names)
    return alternative(group, connect)


@check_of_ways(
    "reverse-path",
    question="Would every host take packets that come in where it would not answer?",
    reads=("dials", "health.kernel", "health.routes"),
    saw="{host} drops what comes in at {interface}, because it would answer by another "
    "interface (rp_filter {rp_filter}): {evidence}",
    why="two interfaces lead to one network, and the strict filter takes packets for forged",
    symptom="`Connection timed out` on a host with two interfaces in one network.",
    cause="Strict reverse path filtering: what comes in by another interface than the "
    "answer would take is dropped.",
    fix="Sets the filter of the interface to loose (2), until the next start.",
    on_cluster="The same on Kubernetes nodes with several NICs.",
)
def reverse_path(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "reverse-path"):
        interface = group.interface.partition(":")[0]
        # With slashes: a dot in an interface's name (eth0.100) would part it. Source: sysctl(8).
        setting = f"net/ipv4/conf/{interface}/rp_filter"
        before = (part(group.host, "kernel", "rp_filter") or {}).get(interface, 1)
        yield group.match(
            sysctl(group.host.name, setting, 2, was=before), interface=interface, rp_filter=before
        )


@check_of_ways(
    "dial-failed",
    question="Is there anything else that keeps two hosts apart?",
    reads=("dials", "health.links", "health.settings"),
    saw="a connection failed: {evidence}{rule}",
    why="the ranks open the same connections",
    symptom="The finding has the system's own words.",
    cause="None of the known kinds; or a filter (`tc`) or a setting of the kernel of one host, "
    "which is then named.",
    fix="Takes that back; else, where another interface works, that one is taken.",
    explains=(*AFTER, "agent-failed"),
)
def dial_failed(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "dial-failed"):
        causes = [cause_of(seen, link.failed, "silent") for link in group.links]
        cause = next((each for each in causes if each.host == group.host.name), causes[0])
        yield group.match(*(cause.fix or alternative(group)), rule=cause.words)


CHECKS = (
    wrong_netmask,
    forbidden_route,
    no_route,
    other_network,
    wrong_neighbour,
    other_way,
    wrong_source,
    reverse_path,
    dial_failed,
)

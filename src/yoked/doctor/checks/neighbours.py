"""Who is at the other end of a way: the right host, another machine, a router, or nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from yoked.doctor.check import Match
from yoked.doctor.checks.broadcasts import comes, deaf, lost_ways, mute
from yoked.doctor.checks.devices import owners_of
from yoked.doctor.checks.interfaces import NAMES
from yoked.doctor.checks.link_groups import Group, alternative, groups
from yoked.doctor.checks.path import cause_of, packet_makers, stop_first
from yoked.doctor.checks.query import addresses, chosen_address, chosen_device, part
from yoked.doctor.checks.routes import AFTER, check_of_ways, join, network_of
from yoked.doctor.checks.tables import unread_tables
from yoked.doctor.checks.verdicts import both_ways, cards_of, strange_card
from yoked.doctor.firewalls import held_by, long_chains, ruleset_of
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.tables import drop_rule
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import listed_words
from yoked.text import one_line, shortened
from yoked.units import listed


@check_of_ways(
    "other-answers",
    question="Does the right host answer at every address?",
    reads=("dials", "health.routes", "health.links"),
    saw={
        "answers": "at {address}, the address of {meant}, {named} answers: {evidence}",
        "card": "what is for {address}, the address of {meant}, goes to {named}: {evidence}",
        "diverted": "what is for {meant} does not come to who listens there, but to something "
        "else: {evidence}; {rule} on {host}",
        "itself": "what answers at {address} is not who listens there on {meant}, although it "
        "comes from the network card of {meant}: {evidence}; {rules}",
        "unknown": "at {address}, the address of {meant}, something that is none of our agents "
        "answers: another machine, or {meant} itself, cannot tell which: {evidence}; {rules}",
    },
    why={
        **dict.fromkeys(
            ("answers", "card"),
            "two machines have that address, or one answers in the other's place",
        ),
        **dict.fromkeys(
            ("diverted", "itself", "unknown"), "ranks would speak with that in each other's place"
        ),
    },
    symptom="`Connection refused`, or a handshake that makes no sense: `op.preamble.length "
    "<= op.nbytes`; or `Connection timed out`.",
    cause="Another machine has the same address, or the address (172.17.0.1) means each "
    "host's own containers. Or another one answers the question for its network card: `proxy_arp`, "
    "or a program such as netcut. Or a rule of a host's own hands connections to something else "
    "(`redirect`, `dnat`, `tproxy`): a transparent proxy, portspoof, a container's port.",
    fix="Deletes the rule that hands them on; takes an interface at which the right host answers; "
    "else by hand, another address, or another look at who answers.",
    explains=(*NAMES, *AFTER),
)
def other_answers(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "other-answers"):
        who = {
            dial.answered_by
            for link in group.links
            for dial in link.dials
            if dial.answered_by not in (None, dial.target)
        }
        cards = dict.fromkeys(
            mac
            for link in group.links
            for way in both_ways(link)
            if way.target == group.host and (mac := strange_card(way)) is not None
        )
        if cards and not who:
            yield _wrong_card(group, next(iter(cards)))
            continue
        if group.found:
            yield _diverted(group)
            continue
        if not who:
            yield _by_itself(group)
            continue
        other_address = by_hand(
            group.host.name, "give {interface} of {host} another address", interface=group.interface
        )
        yield group.match(
            *alternative(group, other_address),
            how="answers",
            meant=group.host.name,
            address=group.address,
            named=listed(sorted(str(each) for each in who)),
        )


def _diverted(group: Group) -> Match:
    """A rule of the host hands what is for a listener to something else."""
    told = part(group.host, "firewall")
    rules = [f"{held_by(told, [each])}: {each.words}" for each in group.found]
    return group.match(
        *stop_first(group.host, "rules")[0],
        *(drop_rule(group.host.name, each) for each in group.found),
        how="diverted",
        meant=listed(dict.fromkeys(each.target.name for each in group.links)),
        rule=f"{'by' if group.found[0].sure else 'perhaps by'} {listed(rules)}",
    )


def _by_itself(group: Group) -> Match:
    """What answers is none of the fleet's agents, and no rule that was read hands anything on."""
    own = cards_of(group.host)
    cards = {str(link.way("mac")) for link in group.links if not link.way("gateway")}
    is_itself = bool(cards) and cards <= own
    ruled = ruleset_of(part(group.host, "firewall")) is not None
    look = by_hand(
        group.host.name,
        "`sudo nft list ruleset` has redirect, dnat or tproxy where a rule does it; `ss -ltnp` who "
        "listens, `sudo bpftool prog` a program of the kernel's (sk_lookup) that picks another",
    )
    other = by_hand(
        group.host.name,
        "find a second machine with that address: `ip neighbour show {address}` on {sources} has "
        "its network card, and `ip link` on {host} its own",
        address=group.address,
        sources=listed_words([each.name for each in group.peers]),
    )
    return group.match(
        *alternative(group, *([look] if is_itself else [look, other])),
        how="itself" if is_itself else "unknown",
        meant=group.host.name,
        address=group.address,
        rules="no rule that was read hands connections on" if ruled else "its rules were not read",
    )


def _wrong_card(group: Group, mac: str) -> Match:
    """What is for a host goes to a network card that is none of its own."""
    owner = next((each.name for each in group.seen.up if mac in cards_of(each)), None)
    found = [] if owner is None else list(packet_makers(group.seen, group.seen.host(owner)))
    if found:
        (look,) = found[0].fix
    elif owner is None:
        look = by_hand(
            group.host.name,
            "find the machine with the network card {mac}: it has the address {address} too",
            mac=mac,
            address=group.address,
        )
    else:
        look = by_hand(
            owner,
            "find what answers for {address} on {host}: `sysctl -a | grep proxy_arp`, "
            "`ip address`, or a program that sends ARP",
            address=group.address,
        )
    whose = f"of {owner}" if owner else "which is none of the fleet's"
    whose += f", perhaps by {found[0].words}" if found else ""
    return group.match(
        look,
        hosts=[owner or group.host.name, *([group.host.name] if owner else [])],
        how="card",
        meant=group.host.name,
        address=group.address,
        named=f"the network card {mac}, {whose}",
    )


@check_of_ways(
    "container-bridge",
    question="Is no host inside of a container with a network of its own?",
    reads=("dials", "health.virtual"),
    saw="{host} is a container of {manager}, and {address} ({interface}) is of a bridge on its "
    "own machine: {evidence}",
    why="it reaches others, but no other host reaches it; a port that is passed on (`-p`) is one, "
    "and ranks need those that the kernel picks",
    symptom="`Connection timed out` or `No route to host` towards one host only; ssh at a "
    "passed-on port works.",
    cause="Docker and Podman give a container an address of a network on its own machine.",
    fix="By hand: the container again, with the addresses of its machine. Docker Desktop on macOS "
    "and Windows has those of its virtual machine there, which nobody reaches either.",
    on_cluster="Kubernetes gives pods addresses that other nodes reach.",
    explains=(*NAMES, *AFTER),
)
def container_bridge(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "container-bridge"):
        manager = str(part(group.host, "virtual", "container"))
        again = by_hand(
            group.host.name,
            "start the container again with `{manager} run --network=host`, its sshd at a free "
            "port of the machine",
            manager=manager,
        )
        yield group.match(again, manager=manager, address=group.address, interface=group.interface)


@check_of_ways(
    "nat",
    question="Is the address of every host one that others can dial?",
    reads=("dials", "facts", "health.virtual"),
    saw="{host} is Linux inside Windows (WSL2), and its address {address} is behind a NAT{passed}: "
    "{evidence}",
    why="it reaches others, but nobody reaches it; `portproxy` passes single ports on, and ranks "
    "need those that the kernel picks",
    symptom="`Connection timed out` towards one host only; its own connections work.",
    cause="WSL2 has an address of its own behind Windows, unless its networking is mirrored.",
    fix="By hand: WSL's mirrored networking (Windows 11 from 22H2 on) gives Linux the addresses of "
    "Windows.",
    explains=(*NAMES, *AFTER),
)
def nat(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "nat"):
        ports = part(group.host, "virtual", "portproxy")
        passed = f"; Windows passes {listed(map(str, ports))} alone on to others" if ports else ""
        yield group.match(
            by_hand(
                group.host.name,
                "in Windows, write `[wsl2]` and `networkingMode=mirrored` into "
                "%UserProfile%\\.wslconfig, then run `wsl --shutdown`",
            ),
            address=group.address,
            passed=passed,
        )


@check_of_ways(
    "router-between",
    question="Are the hosts in one network?",
    reads=("dials", "interfaces"),
    saw="a router stands between {nets:list}: {evidence}",
    why="a router that translates addresses, or a guest network, lets connections through in "
    "one direction at most",
    symptom="`Connection timed out`, often in one direction: the one behind the second "
    "router reaches the others, and not the other way round.",
    cause="Two routers, one behind the other, or a guest network.",
    fix="Takes another interface where one works; else by hand: plug both into the same router.",
    explains=(*NAMES, *AFTER),
)
def router_between(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "router-between"):
        nets = [
            f"{network_of(address, prefix)} of {host.name}"
            for host in (group.host, *group.peers)
            for _, address, prefix in addresses(host)
            if address == chosen_address(seen, host) and prefix is not None
        ]
        yield group.match(*join(group), hosts=group.names, nets=nets)


@check_of_ways(
    "silent-neighbour",
    question="Do the network cards of all hosts hear each other?",
    reads=("dials", "health.routes", "health.broadcasts"),
    saw={
        "": "{names:list} count each other to their network, but one asks for the other's network "
        "card and gets no answer: {evidence}",
        "lost": "{names:list} do not find each other's network cards: {evidence}; {lost}",
        "heard": "{names:list} count each other to their network, but one asks for the other's "
        "network card and gets no answer: {evidence}; what {one} says to all comes to the card "
        "of {other}, so {other} does not answer, or its answer is lost",
    },
    why={
        **dict.fromkeys(
            ("", "heard"),
            "they do not hear each other, and nothing that was read of them surely does it: often "
            "a cable, a switch, or two networks with the same numbers",
        ),
        "lost": "the question for a network card is said to all of a network: who does not get it "
        "is found by nobody who does not know it already",
    },
    symptom="`No route to host` after three seconds.",
    cause="Nothing answers on the wire: cable, switch, VLAN, or two networks that have the "
    "same numbers (192.168.1.0/24 at home and at work). Or a switch or an access point hands on "
    "what is for one card, and nothing that is for all (storm control, a filter of broadcasts or "
    "multicasts): each host says something to all, and tells whose words came to its card.",
    fix="By hand, or another interface where there is one that works.",
)
def silent_neighbour(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "silent-neighbour"):
        asked = [pair for link in group.links for pair in (link.name, link.name[::-1])]
        if lost := lost_ways(seen, dict.fromkeys(asked)):
            yield _lost_for_all(group, lost)
            continue
        link = next((each for each in group.links if each.target == group.host), group.links[0])
        if comes(link.source, link.target):
            look = by_hand(
                link.target.name,
                "`ip -d link show {interface}`, `sysctl -a | grep -E arp_\\|solicit` and `sudo nft "
                "list ruleset` have what can keep it from answering; `sudo tcpdump -ni {interface} "
                "arp or icmp6` shows whether it does",
                interface=chosen_device(seen, link.target),
            )
            yield group.match(
                *alternative(group, look),
                how="heard",
                hosts=[group.host.name, *(each.name for each in group.peers)],
                names=group.names,
                one=link.source.name,
                other=link.target.name,
            )
            continue
        cable = by_hand(
            group.host.name,
            "check the cable of {interface}, and that both are at one switch or router",
            interface=group.interface,
        )
        yield group.match(*alternative(group, cable), hosts=group.names, names=group.names)


def _lost_for_all(group: Group, lost: Sequence[tuple[str, str]]) -> Match:
    """What one says to all does not come to the other's card."""
    seen = group.seen
    unhearing, unheard = deaf(seen), mute(seen)
    names = dict.fromkeys(name for pair in lost for name in pair)
    if all(other in unhearing for _, other in lost):
        guilty = [name for name in names if name in unhearing]
        others = [host.name for host in seen.up if host.name not in unhearing]
        more = f", and to those of {listed(others)} it does" if len(others) > 1 else ""
        said = (
            f"what others say to all does not come to the card of {listed(guilty)}{more}. So it is "
            "lost between the cards, and no host's own rules do that"
        )
    elif all(one in unheard for one, _ in lost):
        guilty = [name for name in names if name in unheard]
        said = (
            f"what {listed(guilty)} says to all comes to no other card: its port or cable, or what "
            "sends there, keeps it back, cannot tell which"
        )
    else:
        guilty = list(names)
        ways = listed(f"from {one} to {other}" for one, other in lost)
        said = f"what one says to all does not come {ways}, and at which end cannot be told"
    switch = by_hand(
        "",
        "at the switch or access point, look at the ports of {names}: storm control, a filter of "
        "broadcasts or multicasts, isolation; or take another port. Until then `ip neighbour "
        "replace ADDRESS lladdr CARD dev INTERFACE nud permanent` on one host has it know another",
        names=listed_words(guilty),
    )
    return group.match(
        *alternative(group, switch), how="lost", hosts=guilty, names=group.names, lost=said
    )


@check_of_ways(
    "lost-between",
    question="Does what is between the hosts let packets pass?",
    reads=("dials", "health.firewall", "health.routes"),
    saw={
        "read": "no connection comes about between {names:list}: {evidence}; in what was read of "
        "them nothing does it: rules of firewalls for TCP, routes, addresses, interfaces, settings "
        "of the kernel, denials of units",
        "unread": "no connection comes about between {names:list}: {evidence}; not read: "
        "{unread:list}",
        "odd": "no connection comes about between {names:list}: {evidence}{odd}",
        "tunnel": "no connection comes about between {names:list}: {evidence}; {carriers:list}: "
        "what it lets pass by its own settings is not seen, and on which host it is cannot be "
        "told",
    },
    why="something drops packets, in one direction at least: what lies between them, or something "
    "on a host that was not read",
    symptom="`Connection timed out`, although `ip neighbour` shows both as reachable.",
    cause="What lies between drops packets, perhaps in one direction alone: then no answer "
    "comes back, and both directions fail. Or a host does, by other means than rules: `tc`, a BPF "
    "program.",
    fix="Takes another interface where one works; else by hand: see where they are lost.",
    on_cluster="Clouds: a security group or network ACL that is not stateful.",
)
def lost_between(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "lost-between"):
        watch = by_hand(
            "",
            "run `tcpdump -ni any tcp and host {address}` on {names} while `yoked doctor` runs: "
            "what one shows as sent and the other not as come is lost between them, at a managed "
            "switch, a mesh or a bridge; what is never shown as sent is lost on its host: "
            "`tc -s qdisc`",
            address=group.address,
            names=listed_words(group.names),
        )
        unread = [
            f"{what} of {host.name}"
            for host in (group.host, *group.peers)
            for what in _unread(host)
        ]
        carriers = list(_carriers(group))
        odd = cause_of(seen, group.links[0].failed, "silent").words
        yield group.match(
            *alternative(group, *(look for _, look in carriers), watch),
            how="odd" if odd else "tunnel" if carriers else "unread" if unread else "read",
            hosts=group.names,
            names=group.names,
            unread=unread,
            carriers=[words for words, _ in carriers],
            odd=odd,
        )


def _carriers(group: Group) -> Iterator[tuple[str, Fix]]:
    """The programs that carry a tunnel of the run, each with what there is to look at."""
    for host in (group.host, *group.peers):
        device = chosen_device(group.seen, host)
        for each in owners_of(host, device):
            command, pid = shortened(one_line(each["command"])), each["pid"]
            config = f", set by {one_line(each['config'])}," if each["config"] else ""
            words = f"{device} of {host.name} is carried by `{command}` (process {pid}){config}"
            look = by_hand(
                host.name,
                "in {config}, or where else `{program}` has its settings: peers, their keys, "
                "addresses that are allowed, access lists",
                config=each["config"] or "its configuration",
                program=command.partition(" ")[0],
            )
            yield words, look


def _unread(host: HostSeen) -> list[str]:
    """What of a host could be against it, and nobody has read."""
    told = part(host, "firewall")
    rules = [] if ruleset_of(told) is not None else ["the rules of the firewall"]
    chains = [f"{count:,} rules of {name}" for name, count in long_chains(told).items()]
    return [*rules, *chains, *unread_tables(host)]


@check_of_ways(
    "client-isolation",
    question="May clients of one access point speak to each other?",
    reads=("dials", "health.routes", "health.gateway"),
    saw="{names:list} reach the router ({router}), and not each other: {evidence}",
    why="the access point keeps its clients apart (client or AP isolation, a guest network)",
    symptom="`No route to host` between two laptops in one wireless network; both surf.",
    cause="Client isolation: the access point hands on nothing between its clients. Guest "
    "networks have it always.",
    fix="By hand: at the access point, or a cable.",
    on_cluster="Clouds: two subnets or security groups without a rule between them.",
)
def client_isolation(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "client-isolation"):
        router = part(group.host, "gateway", "address")
        apart = by_hand(
            "",
            "switch isolation off at {router}, or connect {host} by cable",
            router=router,
            host=group.host.name,
        )
        yield group.match(
            *alternative(group, apart), hosts=group.names, names=group.names, router=router
        )


CHECKS = (
    other_answers,
    client_isolation,
    lost_between,
    silent_neighbour,
    container_bridge,
    nat,
    router_between,
)

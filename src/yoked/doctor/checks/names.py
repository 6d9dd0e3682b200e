"""What each host's own resolver makes of the hosts' names.

A run of yoked names interfaces and addresses, and so goes on whatever names say: what is found
here breaks other programs, torchrun typed by hand first of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import (
    address_of,
    addresses,
    at,
    chosen_address,
    is_loopback,
    mapping,
    part,
    version_of,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import ask_name_servers_briefly, write_name
from yoked.records.examination import Examination, Fix, HostSeen

# torchrun asks for names several times before it says a word.
_SLOW_S = 1.0
_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[\w.-]+", re.ASCII)
# Source: hosts(5), RFC 6761.
_OF_ALL = re.compile(r"(ip6-)?(localhost|loopback)(\d|\.|$)", re.IGNORECASE)
# What most of these checks have in common.
_check = partial(check, reads=("health.names",), severity="warning")


def _own(host: HostSeen) -> tuple[str, list[str]]:
    """The host's own name, and the addresses that it resolves to there."""
    name = part(host, "names", "hostname") or host.facts.get("hostname") or host.name
    return str(name), [str(each) for each in part(host, "names", "own", "addresses") or ()]


def _others(host: HostSeen) -> dict[str, Mapping[str, Any]]:
    """What other hosts' names resolve to on a host."""
    return {
        name: answer
        for name, answer in mapping(part(host, "names", "others")).items()
        if isinstance(answer, Mapping)
    }


def _bears(host: HostSeen, name: str) -> bool:
    """Whether a name is a host's: that of yoked.toml, or its own."""
    return name in (host.name, _own(host)[0])


def _written(seen: Examination, host: HostSeen, name: str, address: str | None) -> tuple[Fix, ...]:
    """The line that has a name be an address; none where either is not what it should be.

    A name that every machine has for itself, or two hosts have, is no line's to give away: whoever
    bears it gets another.
    """
    bearers = [each.name for each in seen.up if _own(each)[0] == name]
    if _OF_ALL.match(name) or len(bearers) > 1:
        shared = bearers if _OF_ALL.match(name) else bearers[1:]
        return tuple(
            by_hand(
                each, "sudo hostnamectl set-hostname NAME    with a name that no other host has"
            )
            for each in shared
        )
    if address is None or address_of(address) is None or not _NAME.fullmatch(name):
        return ()
    order = part(host, "names", "order")
    if order and "files" not in str(order).split():
        # No line of /etc/hosts counts there.
        return (
            by_hand(
                host.name,
                "have the line `hosts:` of /etc/nsswitch.conf begin with files, and look again: it "
                "has {order}, so that /etc/hosts counts for nothing",
                order=order,
            ),
        )
    return (write_name(host.name, name, address),)


def _to_own_address(seen: Examination, host: HostSeen, name: str) -> tuple[Fix, ...]:
    return _written(seen, host, name, chosen_address(seen, host))


@_check(
    "own-name",
    question="Does every host take its own name for an address that others can dial?",
    reads=("health.names", "interfaces"),
    saw="on {host}, its own name {name} is {loopback:list}",
    why="torch without GLOO_SOCKET_IFNAME would tell its peers to dial that address; yoked "
    "sets it, torchrun by hand does not",
    symptom="`Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc] connect "
    "[127.0.1.1]:41234: Connection refused`, on the other hosts.",
    cause="Debian and Ubuntu write `127.0.1.1 HOSTNAME` into /etc/hosts. Gloo that is told "
    "no interface resolves the own name and tells its peers what it got.",
    fix="Writes the name with its real address into /etc/hosts. `export "
    "GLOO_SOCKET_IFNAME=eth0` in front of torchrun does as well; yoked always sets it.",
    on_cluster="With Slurm and NCCL the same is `NCCL_SOCKET_IFNAME`; in Kubernetes a pod's "
    "name is its pod address, and this does not occur.",
)
def own_name(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        name, found = _own(host)
        loopback = [each for each in found if is_loopback(each)]
        # Gloo takes the first.
        if len(seen.hosts) > 1 and found and is_loopback(found[0]):
            yield Match(host.name, *_to_own_address(seen, host, name), name=name, loopback=loopback)


@_check(
    "own-name-unresolved",
    question="Does every host know its own name?",
    saw="{host} does not know its own name {name}: {error}",
    why="torch without GLOO_SOCKET_IFNAME finds no address to listen at",
    symptom="`RuntimeError: getaddrinfo: Name or service not known` or `Unable to resolve "
    "hostname to a (local) address`.",
    cause="The host was renamed, and /etc/hosts has the old name.",
    fix="Writes the name with its address into /etc/hosts.",
    on_cluster="`sudo` complains as well: `unable to resolve host`.",
)
def own_name_unresolved(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        own = part(host, "names", "own")
        name, found = _own(host)
        if own is not None and not found and at(own, "error"):
            yield Match(
                host.name, *_to_own_address(seen, host, name), name=name, error=at(own, "error")
            )


@_check(
    "own-name-elsewhere",
    question="Is the address behind every host's own name its own?",
    reads=("health.names", "interfaces"),
    saw="on {host}, its own name {name} is {foreign:list}, which is no address of it",
    why="torch without GLOO_SOCKET_IFNAME cannot listen there: `Cannot assign requested address`",
    symptom="`bind: Cannot assign requested address`, or peers dial another machine.",
    cause="/etc/hosts or the DNS has an address that the host had once.",
    fix="Writes the name with today's address into /etc/hosts.",
)
def own_name_elsewhere(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        name, found = _own(host)
        own = {address for _, address, _ in addresses(host)}
        foreign = [each for each in found if not is_loopback(each) and each not in own]
        if own and found and foreign == found:
            yield Match(host.name, *_to_own_address(seen, host, name), name=name, foreign=foreign)


@_check(
    "peer-name",
    question="Does every host know the names that other hosts know?",
    saw="{host} does not know the name {name}: {error}; other hosts know their peers by name",
    why="`--master_addr={name}` would fail here alone; yoked uses addresses",
    symptom="`socket.gaierror: [Errno -2] Name or service not known`, or `The IPv4 network "
    "addresses of (alpha, 29500) cannot be retrieved`, on one host.",
    cause="The name stands in the /etc/hosts of some hosts only. Names of ~/.ssh/config "
    "are known to ssh alone.",
    fix="Writes the name into /etc/hosts of the host that lacks it.",
    on_cluster="Kubernetes: a headless service gives pods names; without it the same "
    "message appears in all but one.",
)
def peer_name(seen: Examination) -> Iterator[Match]:
    """Names of hosts that one host does not know, where peers are known by name at all."""
    known = {
        name
        for host in seen.up
        for name, answer in _others(host).items()
        if answer.get("addresses") and not _bears(host, name)
    }
    for host in seen.up if known else ():
        for other in seen.hosts:
            asked = {n: a for n, a in _others(host).items() if _bears(other, n) and other != host}
            if not asked or any(answer.get("addresses") for answer in asked.values()):
                continue
            address, name = chosen_address(seen, other), next(iter(asked))
            yield Match(
                host.name,
                *_written(seen, host, name, address),
                link=(host.name, other.name),
                name=name,
                error=asked[name].get("error"),
            )


@_check(
    "peer-name-wrong",
    question="Is every name the same machine on all hosts?",
    reads=("health.names", "interfaces"),
    saw="on {host}, the name {name} is {found:list}, which is no address of {target}",
    why={
        "itself": "both hosts would take themselves for the master, and wait for the other",
        "elsewhere": "whoever dials it by name reaches something else, or nothing",
    },
    symptom="Each host waits alone, for ever: the name of the master is its own address on "
    "both. Or `Connection refused` by a machine that has nothing to do with it.",
    cause="An old line of /etc/hosts, or a DNS that answers any name (some providers do).",
    fix="Writes the name with its real address into /etc/hosts.",
    explains=("peer-name",),
)
def peer_name_wrong(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        for other in seen.up:
            own = {address for _, address, _ in addresses(other)}
            for name, answer in _others(host).items() if other != host and own else ():
                found = [str(each) for each in answer.get("addresses") or ()]
                if _bears(other, name) and found and not own & set(found):
                    yield _points_elsewhere(seen, host, other, name, found)
                    break


def _points_elsewhere(
    seen: Examination, host: HostSeen, other: HostSeen, name: str, found: list[str]
) -> Match:
    own = {address for _, address, _ in addresses(host)}
    itself = any(is_loopback(each) or each in own for each in found)
    address = chosen_address(seen, other)
    return Match(
        host.name,
        *_written(seen, host, name, address),
        link=(host.name, other.name),
        name=name,
        found=found,
        how="itself" if itself else "elsewhere",
    )


@_check(
    "name-family",
    question="Would all hosts pick the same family, IPv4 or IPv6, by their names?",
    saw="{host} takes its own name {name} for IPv{odd} ({address}); {others:list} would use IPv4",
    why="torch without GLOO_SOCKET_IFNAME ends with `ss1.ss_family == ss2.ss_family. 10 vs 2`",
    symptom="`ss1.ss_family == ss2.ss_family. 10 vs 2`: 10 is IPv6, 2 is IPv4.",
    cause="One host's own name is an IPv6 address first (a VPN, or mDNS), another's IPv4.",
    fix="Writes the name with its IPv4 address into /etc/hosts. Naming an interface of one "
    "family on each host does as well, which yoked does.",
)
def name_family(seen: Examination) -> Iterator[Match]:
    first = {
        host.name: version_of(found[0])
        for host in seen.up
        if (found := _own(host)[1]) and not is_loopback(found[0])
    }
    versions = set(first.values())
    if len(versions) < 2:
        return
    odd = 6 if 6 in versions else next(iter(versions))
    for host in seen.up:
        if first.get(host.name) != odd:
            continue
        name, found = _own(host)
        others = [each for each in first if first[each] != odd]
        yield Match(
            host.name,
            *_to_own_address(seen, host, name),
            name=name,
            odd=odd,
            address=found[0],
            others=others,
        )


@_check(
    "slow-names",
    question="Are names looked up in no time?",
    reads=("health.names", "world"),
    severity="error",
    saw="{host} took {took:duration} to look up the name {of}{name}",
    why="torch asks for names at each connection, and waits for the answers",
    symptom="torchrun says nothing for 5, 10 or 20 s before the rendezvous, or `The client "
    "socket has timed out`; between the lines, `The hostname of the client socket cannot "
    "be retrieved`.",
    cause="The first DNS server that the host asks does not answer, and each question "
    "waits for it: often one of a VPN or a network that the laptop has left. Or /etc/hosts has no "
    "line for localhost, so that 127.0.0.1 is asked of the DNS too. torch's store "
    "asks for the name of every address that connects, although it uses it in messages "
    "alone. It is an error where a world of ranks failed as well.",
    fix="Writes the name into /etc/hosts, where it is found first, and has the resolver "
    "give up after a second, until the file is written anew. The DNS itself is for you to "
    "mend: `resolvectl status`.",
    explains=("own-name-unresolved", "peer-name", "world-failed"),
)
def slow_names(seen: Examination) -> Iterator[Match]:
    failed = seen.world is not None and seen.world.ok is False
    for host in seen.up:
        answers = [(_own(host)[0], mapping(part(host, "names", "own"))), *_others(host).items()]
        # What torch's store asks of each connection: the name of who is there.
        used = {_LOOPBACK, *(chosen_address(seen, other) for other in seen.up)}
        reverse = mapping(part(host, "names", "reverse"))
        answers += [(address, mapping(a)) for address, a in reverse.items() if address in used]
        slow = {n: a["took_s"] for n, a in answers if (a.get("took_s") or 0) > _SLOW_S}
        if slow:
            name = max(slow, key=lambda each: slow[each])
            yield Match(
                host.name,
                *_known(seen, host, name),
                ask_name_servers_briefly(host.name),
                severity="error" if failed else "warning",
                took=slow[name],
                of="of " if name in used else "",
                name=name,
            )


def _known(seen: Examination, host: HostSeen, name: str) -> tuple[Fix, ...]:
    if name == _LOOPBACK:
        return (write_name(host.name, "localhost", _LOOPBACK),)
    for other in seen.up:
        address = chosen_address(seen, other)
        if address and (name == address or _bears(other, name)):
            # A line of /etc/hosts answers both ways.
            return _written(seen, host, _own(other)[0] if name == address else name, address)
    return ()


CHECKS = (
    own_name,
    own_name_unresolved,
    own_name_elsewhere,
    peer_name,
    peer_name_wrong,
    name_family,
    slow_names,
)

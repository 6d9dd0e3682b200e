"""What each host's own resolver makes of the hosts' names.

A run of yoked names interfaces and addresses, and so goes on whatever names say: what is found
here breaks other programs, torchrun typed by hand first of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Check, page
from yoked.doctor.checks.keeping import change_file
from yoked.doctor.checks.reading import (
    address_of,
    addresses,
    at,
    chosen_address,
    finding,
    for_sed,
    is_loopback,
    listed,
    mapping,
    part,
    version_of,
)
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.records.shell import Line, shell_line
from yoked.units import format_duration

# torchrun asks for names several times before it says a word.
_SLOW_S = 1.0
_NAME = re.compile(r"[\w.-]+", re.ASCII)


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


def write_name(host: HostSeen, name: str, address: str) -> Fix:
    """Have a name be an address in /etc/hosts of a host, instead of what stands there."""
    # The name goes from every line, and a line of nothing but an address goes with it. Written
    # over, not replaced: in containers /etc/hosts is mounted.
    drop = f"s/[[:space:]]{for_sed(name)}([[:space:]]|$)/\\1/g"

    def change(old: Line) -> Line:
        return shell_line(
            "{{ echo {entry}; sed -E -e {drop} -e '/^[^#[:space:]]+[[:space:]]*$/d' {old}; }}",
            entry=f"{address} {name}",
            drop=drop,
            old=old,
        )

    return change_file(host.name, shell_line("/etc/hosts"), name, change, root=True)


def _written(host: HostSeen, name: str, address: str | None) -> tuple[Fix, ...]:
    """The line that has a name be an address; none where either is not what it should be."""
    if address is None or address_of(address) is None or not _NAME.fullmatch(name):
        return ()
    return (write_name(host, name, address),)


def _to_own_address(seen: Examination, host: HostSeen, name: str) -> tuple[Fix, ...]:
    return _written(host, name, chosen_address(seen, host))


def _own_name(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        name, found = _own(host)
        loopback = [each for each in found if is_loopback(each)]
        # Gloo takes the first.
        if len(seen.hosts) > 1 and found and is_loopback(found[0]):
            yield finding(
                "own-name",
                "warning",
                host.name,
                f"on {host.name}, its own name {name} is {listed(loopback)}",
                "torch without GLOO_SOCKET_IFNAME would tell its peers to dial that address; "
                "yoked sets it, torchrun by hand does not",
                *_to_own_address(seen, host, name),
            )


def _own_name_unresolved(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        own = part(host, "names", "own")
        name, found = _own(host)
        if own is not None and not found and at(own, "error"):
            yield finding(
                "own-name-unresolved",
                "warning",
                host.name,
                f"{host.name} does not know its own name {name}: {at(own, 'error')}",
                "torch without GLOO_SOCKET_IFNAME finds no address to listen at",
                *_to_own_address(seen, host, name),
            )


def _own_name_elsewhere(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        name, found = _own(host)
        own = {address for _, address, _ in addresses(host)}
        foreign = [each for each in found if not is_loopback(each) and each not in own]
        if own and found and foreign == found:
            yield finding(
                "own-name-elsewhere",
                "warning",
                host.name,
                f"on {host.name}, its own name {name} is {listed(foreign)}, which is no address "
                "of it",
                "torch without GLOO_SOCKET_IFNAME cannot listen there: `Cannot assign requested "
                "address`",
                *_to_own_address(seen, host, name),
            )


def _peer_name(seen: Examination) -> Iterator[Finding]:
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
            yield finding(
                "peer-name",
                "warning",
                host.name,
                f"{host.name} does not know the name {name}: {asked[name].get('error')}; other "
                "hosts know their peers by name",
                f"`--master_addr={name}` would fail here alone; yoked uses addresses",
                *_written(host, name, address),
                link=(host.name, other.name),
            )


def _peer_name_wrong(seen: Examination) -> Iterator[Finding]:
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
) -> Finding:
    own = {address for _, address, _ in addresses(host)}
    if any(is_loopback(each) or each in own for each in found):
        what = "both hosts would take themselves for the master, and wait for the other"
    else:
        what = "whoever dials it by name reaches something else, or nothing"
    address = chosen_address(seen, other)
    return finding(
        "peer-name-wrong",
        "warning",
        host.name,
        f"on {host.name}, the name {name} is {listed(found)}, which is no address of {other.name}",
        what,
        *_written(host, name, address),
        link=(host.name, other.name),
    )


def _name_families(seen: Examination) -> Iterator[Finding]:
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
        yield finding(
            "name-family",
            "warning",
            host.name,
            f"{host.name} takes its own name {name} for IPv{odd} ({found[0]}); {listed(others)} "
            "would use IPv4",
            "torch without GLOO_SOCKET_IFNAME ends with `ss1.ss_family == ss2.ss_family. 10 vs 2`",
            *_to_own_address(seen, host, name),
        )


def _slow_names(seen: Examination) -> Iterator[Finding]:
    failed = seen.world is not None and seen.world.ok is False
    for host in seen.up:
        answers = [(_own(host)[0], mapping(part(host, "names", "own"))), *_others(host).items()]
        # What torch's store asks of each connection: the name of who is there.
        used = {chosen_address(seen, other) for other in seen.up}
        reverse = mapping(part(host, "names", "reverse"))
        answers += [(address, mapping(a)) for address, a in reverse.items() if address in used]
        slow = {n: a["took_s"] for n, a in answers if (a.get("took_s") or 0) > _SLOW_S}
        if slow:
            name = max(slow, key=lambda each: slow[each])
            yield finding(
                "slow-names",
                "error" if failed else "warning",
                host.name,
                f"{host.name} took {format_duration(slow[name])} to look up the name "
                f"{'of ' if name in used else ''}{name}",
                "torch asks for names at each connection, and waits for the answers",
                *_known(seen, host, name),
                _ask_briefly(host),
            )


def _ask_briefly(host: HostSeen) -> Fix:
    """Have the resolver give a silent server up after a second."""
    return change_file(
        host.name,
        shell_line("/etc/resolv.conf"),
        "brief",
        lambda old: shell_line("{{ cat {old}; echo 'options timeout:1 attempts:1'; }}", old=old),
        root=True,
    )


def _known(seen: Examination, host: HostSeen, name: str) -> tuple[Fix, ...]:
    for other in seen.up:
        address = chosen_address(seen, other)
        if address and (name == address or _bears(other, name)):
            # A line of /etc/hosts answers both ways.
            return _written(host, _own(other)[0] if name == address else name, address)
    return ()


CHECKS = (
    Check(
        "own-name",
        "Does every host take its own name for an address that others can dial?",
        ("health.names", "interfaces"),
        "warning",
        page(
            symptom="`Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc] connect "
            "[127.0.1.1]:41234: Connection refused`, on the other hosts.",
            cause="Debian and Ubuntu write `127.0.1.1 HOSTNAME` into /etc/hosts. Gloo that is told "
            "no interface resolves the own name and tells its peers what it got.",
            fix="Writes the name with its real address into /etc/hosts. `export "
            "GLOO_SOCKET_IFNAME=eth0` in front of torchrun does as well; yoked always sets it.",
            elsewhere="With Slurm and NCCL the same is `NCCL_SOCKET_IFNAME`; in Kubernetes a pod's "
            "name is its pod address, and this does not occur.",
        ),
        _own_name,
    ),
    Check(
        "own-name-unresolved",
        "Does every host know its own name?",
        ("health.names",),
        "warning",
        page(
            symptom="`RuntimeError: getaddrinfo: Name or service not known` or `Unable to resolve "
            "hostname to a (local) address`.",
            cause="The host was renamed, and /etc/hosts has the old name.",
            fix="Writes the name with its address into /etc/hosts.",
            elsewhere="`sudo` complains as well: `unable to resolve host`.",
        ),
        _own_name_unresolved,
    ),
    Check(
        "own-name-elsewhere",
        "Is the address behind every host's own name its own?",
        ("health.names", "interfaces"),
        "warning",
        page(
            symptom="`bind: Cannot assign requested address`, or peers dial another machine.",
            cause="/etc/hosts or the DNS has an address that the host had once.",
            fix="Writes the name with today's address into /etc/hosts.",
        ),
        _own_name_elsewhere,
    ),
    Check(
        "peer-name",
        "Does every host know the names that other hosts know?",
        ("health.names",),
        "warning",
        page(
            symptom="`socket.gaierror: [Errno -2] Name or service not known`, or `The IPv4 network "
            "addresses of (alpha, 29500) cannot be retrieved`, on one host.",
            cause="The name stands in the /etc/hosts of some hosts only. Names of ~/.ssh/config "
            "are known to ssh alone.",
            fix="Writes the name into /etc/hosts of the host that lacks it.",
            elsewhere="Kubernetes: a headless service gives pods names; without it the same "
            "message appears in all but one.",
        ),
        _peer_name,
    ),
    Check(
        "peer-name-wrong",
        "Is every name the same machine on all hosts?",
        ("health.names", "interfaces"),
        "warning",
        page(
            symptom="Each host waits alone, for ever: the name of the master is its own address on "
            "both. Or `Connection refused` by a machine that has nothing to do with it.",
            cause="An old line of /etc/hosts, or a DNS that answers any name (some providers do).",
            fix="Writes the name with its real address into /etc/hosts.",
        ),
        _peer_name_wrong,
        explains=("peer-name",),
    ),
    Check(
        "name-family",
        "Would all hosts pick the same family, IPv4 or IPv6, by their names?",
        ("health.names",),
        "warning",
        page(
            symptom="`ss1.ss_family == ss2.ss_family. 10 vs 2`: 10 is IPv6, 2 is IPv4.",
            cause="One host's own name is an IPv6 address first (a VPN, or mDNS), another's IPv4.",
            fix="Writes the name with its IPv4 address into /etc/hosts. Naming an interface of one "
            "family on each host does as well, which yoked does.",
        ),
        _name_families,
    ),
    Check(
        "slow-names",
        "Are names looked up in no time?",
        ("health.names", "world"),
        "error",
        page(
            symptom="torchrun says nothing for 5, 10 or 20 s before the rendezvous, or `The client "
            "socket has timed out`; between the lines, `The hostname of the client socket cannot "
            "be retrieved`.",
            cause="The first DNS server that the host asks does not answer, and each question "
            "waits for it: often one of a VPN or a network that the laptop has left. torch's store "
            "asks for the name of every address that connects, although it uses it in messages "
            "alone. It is an error where a world of ranks failed as well.",
            fix="Writes the name into /etc/hosts, where it is found first, and has the resolver "
            "give up after a second, until the file is written anew. The DNS itself is for you to "
            "mend: `resolvectl status`.",
        ),
        _slow_names,
        explains=("own-name-unresolved", "peer-name", "world-failed"),
    ),
)

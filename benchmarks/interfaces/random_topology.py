"""Random networks of 2 to 4 hosts, of which it is known which interface each must use."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

FAST_MBIT = (300, 600, 1000)
# At most a third of the fast network: no measurement can confuse them.
SLOW_MBIT = (20, 50, 100)
SOME = "faster link to some"
VPN_NAMES = ("tailscale0", "wg0", "zt7nnig2")


@dataclass
class Case:
    """One network. toml: for the lab; after: programs to run on hosts once it is up.

    expected: for each host (interface, family) that is right. traits: what makes it hard.
    """

    seed: int
    toml: str
    expected: dict[str, tuple[str, int]]
    after: dict[str, list[list[str]]]
    traits: list[str]


@dataclass
class _Host:
    name: str
    fast: str
    interfaces: list[str] = field(default_factory=list)
    after: list[list[str]] = field(default_factory=list)


def make_case(seed: int) -> Case:
    """The network of a seed: a fast link that reaches all, and what may be taken for it."""
    rng = random.Random(seed)
    names = ["alpha", "beta", "gamma", "delta"][: rng.randint(2, 4)]
    family = 6 if rng.random() < 0.25 else 4
    fast_mbit = rng.choice(FAST_MBIT)
    hosts = [_Host(name, rng.choice(("eth0", "enp4s0", "eno1"))) for name in names]
    networks = [_network("fast", 10, family, fast_mbit)]
    for host in hosts:
        host.interfaces += [_ssh_only(host), _joined(host.fast, "fast")]
    traits = [f"{len(names)} hosts", f"fast IPv{family}"]
    for trait, add in _TRAITS.items():
        if rng.random() < 0.5 and (trait != SOME or len(hosts) > 2):
            add(rng, hosts, networks, family)
            traits.append(trait)
    # The order in which a host has its interfaces must not matter.
    for host in hosts:
        rng.shuffle(host.interfaces)
    expected = {host.name: (host.fast, family) for host in hosts}
    return Case(
        seed, _toml(rng, hosts, networks), expected, {h.name: h.after for h in hosts}, traits
    )


def _docker(rng: random.Random, hosts: list[_Host], _: list[str], __: int) -> None:
    """The same address on every host."""
    for host in hosts:
        host.interfaces.append(
            '[[host.interface]]\nname = "docker0"\nkind = "bridge"\naddress = "172.17.0.1/16"'
        )


def _vpn(rng: random.Random, hosts: list[_Host], networks: list[str], _: int) -> None:
    """IPv6 only, slow, and reaches all."""
    networks.append(_network("vpn", 20, 6, rng.choice((20, 40))))
    name = rng.choice(VPN_NAMES)
    for host in hosts:
        host.interfaces.append(_joined(name, "vpn"))


def _slow(rng: random.Random, hosts: list[_Host], networks: list[str], _: int) -> None:
    """A second network that reaches all, much slower; sometimes with both families."""
    networks.append(_network("slow", 30, rng.choice((4, 4, 0)), rng.choice(SLOW_MBIT)))
    for host in hosts:
        host.interfaces.append(_joined("wlan0", "slow"))


def _partial(rng: random.Random, hosts: list[_Host], networks: list[str], _: int) -> None:
    """A network as fast as it gets, that one host is not in."""
    networks.append(_network("part", 40, 4, 2500))
    for host in rng.sample(hosts, len(hosts) - 1):
        host.interfaces.append(_joined("enp9s0", "part"))


def _aliases(rng: random.Random, hosts: list[_Host], _: list[str], family: int) -> None:
    """More addresses on the right interface: of the same network, and ones that lead nowhere."""
    for number, host in enumerate(hosts):
        if family == 4:
            more = [f"10.99.{number}.1/24", f"10.10.0.{100 + number}/24", f"fd99:{number}::1/64"]
        else:
            # The kernel puts the newest IPv6 address first, and an IPv4 address before all.
            more = [f"fd10::{100 + number}/64"]
        for address in more:
            nodad = ["nodad"] if ":" in address else []
            host.after.append(["ip", "address", "add", address, "dev", host.fast, *nodad])


def _dead_end(rng: random.Random, hosts: list[_Host], _: list[str], __: int) -> None:
    """An interface with an address in a subnet of its own on one host."""
    host = rng.choice(hosts)
    host.interfaces.append(
        '[[host.interface]]\nname = "virbr0"\nkind = "bridge"\naddress = "192.168.122.1/24"'
    )


_Add = Callable[[random.Random, list[_Host], list[str], int], None]
_TRAITS: dict[str, _Add] = {
    "docker0": _docker,
    "IPv6 VPN": _vpn,
    "slow second link": _slow,
    SOME: _partial,
    "several addresses": _aliases,
    "dead end": _dead_end,
}


def _network(name: str, number: int, family: int, mbit: int) -> str:
    """family: 4, 6, or 0 for both."""
    lines = ["[[network]]", f'name = "{name}"', f'rate = "{mbit} Mbit/s"']
    if family != 6:
        lines.append(f'subnet = "10.{number}.0.0/24"')
    if family != 4:
        lines.append(f'subnet6 = "fd{number}::/64"')
    return "\n".join(lines)


def _joined(name: str, network: str) -> str:
    return f'[[host.interface]]\nname = "{name}"\nnetwork = "{network}"'


def _toml(rng: random.Random, hosts: list[_Host], networks: list[str]) -> str:
    # ssh comes by a network of its own, slower than all and thus never right.
    ssh = _network("ssh", 50, 4, 10)
    parts = [ssh, *rng.sample(networks, len(networks))]
    for host in hosts:
        parts += [f'[[host]]\nname = "{host.name}"', *host.interfaces]
    return "\n\n".join(parts) + "\n"


def _ssh_only(host: _Host) -> str:
    """A lab's host has an eth0 in any case."""
    return _joined("eth9" if host.fast == "eth0" else "eth0", "ssh")

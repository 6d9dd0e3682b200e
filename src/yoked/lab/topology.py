"""What a lab consists of: networks, hosts, and the interfaces that join them.

A topology is written as TOML, by a person or by us (`topologies/`), and becomes frozen records.
Addresses, port names and MACs are worked out here, once and always alike, so that every other
part of the lab and every test may rely on them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Any

from pydantic import TypeAdapter

from yoked.errors import UsageError
from yoked.units import parse_bit_per_s


@dataclass(frozen=True)
class Shape:
    """What a link does to traffic, in each of its two directions.

    rate_bit_per_s: None is as fast as the machine. delay_s: one way. loss: a fraction of packets.
    """

    rate_bit_per_s: float | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Network:
    """One broadcast domain: a bridge in the switch."""

    name: str
    bridge: str
    subnet4: IPv4Network | None
    subnet6: IPv6Network | None

    @property
    def bridge4(self) -> IPv4Interface | None:
        """The bridge's own address, the last of the subnet: .254 of a /24."""
        if (net := self.subnet4) is None:
            return None
        return IPv4Interface(f"{net.broadcast_address - 1}/{net.prefixlen}")

    @property
    def bridge6(self) -> IPv6Interface | None:
        """The bridge's own IPv6 address, which ends in ::fe."""
        if (net := self.subnet6) is None:
            return None
        return IPv6Interface(f"{net.network_address + 0xFE}/{net.prefixlen}")


@dataclass(frozen=True)
class Interface:
    """A network device of a host.

    network: None is a bridge of the host's own that leads nowhere, as docker0 is.
    port: the other end, in the switch, at most 15 characters; "" where there is none.
    """

    name: str
    network: str | None
    port: str
    mac: str
    address4: IPv4Interface | None
    address6: IPv6Interface | None
    shape: Shape

    @property
    def addresses(self) -> list[IPv4Interface | IPv6Interface]:
        """Those that it has, IPv4 first."""
        return [each for each in (self.address4, self.address6) if each is not None]


@dataclass(frozen=True)
class Host:
    """A virtual host.

    speed: the fraction of a core that each of its CPUs is worth; 1.0 is no limit.
    memory_bytes: None is no limit.
    """

    name: str
    cpus: int
    speed: float
    memory_bytes: int | None
    interfaces: tuple[Interface, ...]

    @property
    def joined(self) -> list[Interface]:
        """The interfaces that lead anywhere: those on a network."""
        return [each for each in self.interfaces if each.network is not None]

    @property
    def cores(self) -> float | None:
        """What the host may use of the machine's, all its CPUs together; None is no limit."""
        return None if self.speed == 1.0 else self.cpus * self.speed

    @property
    def address(self) -> str:
        """Of the first interface that is on a network; IPv4 where it has one."""
        return str(self.joined[0].addresses[0].ip)


@dataclass(frozen=True)
class Topology:
    """A fleet as its file describes it, complete with addresses."""

    name: str
    description: str
    networks: tuple[Network, ...]
    hosts: tuple[Host, ...]

    @property
    def links(self) -> list[tuple[Host, Interface]]:
        """Every host with each of its interfaces that leads anywhere."""
        return [(host, each) for host in self.hosts for each in host.joined]

    def host(self, name: str) -> Host:
        """The host of that name. Raises UsageError with the nearest name."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = [host.name for host in self.hosts]
        raise UsageError(
            f"there is no host {name!r} in {self.name}", fix=hint(name, names, "hosts")
        )


def parse_rate(text: str) -> float:
    """bit/s of `20mbit`, as tc writes it, or `20 Mbit/s`. Raises UsageError."""
    is_tcs = re.search(r"bit\s*$", text, re.IGNORECASE)
    return parse_bit_per_s(f"{text.strip()}/s" if is_tcs else text)


def hint(named: str, known: Iterable[str], what: str) -> str:
    """What a person who wrote `named` may have meant: the nearest known name, or all of them."""
    names = list(known)
    if near := difflib.get_close_matches(named.lower(), names, n=1):
        return f"did you mean {near[0]!r}? {what}: {', '.join(names)}"
    return f"{what}: {', '.join(names)}"


_JSON = TypeAdapter(Topology)


def to_json(topology: Topology) -> dict[str, Any]:
    """The topology as plain JSON values; `from_json` reads them back."""
    plain: dict[str, Any] = _JSON.dump_python(topology, mode="json")
    return plain


def from_json(record: dict[str, Any]) -> Topology:
    """The topology that `to_json` wrote."""
    return _JSON.validate_python(record)

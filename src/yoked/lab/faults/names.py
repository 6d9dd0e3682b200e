"""Names: a host's /etc/hosts, which several faults may change at once, and its resolver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from yoked.errors import LabError
from yoked.lab import network
from yoked.lab.faults.args import HOST, Arg, HostArg, Parsed
from yoked.lab.faults.base import Effect, Fault, FaultContext, Kind
from yoked.lab.faults.network import IpLines
from yoked.lab.faults.textfiles import TextFile
from yoked.lab.tools import text_of
from yoked.lab.topology import hint

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_HOSTS = "/etc/hosts"


class HostsFile(TextFile):
    """A fault in /etc/hosts. change: the lines as this fault has them."""

    AFTER_BOOT = "again"

    def __init__(self, change: Callable[[Fault, Lab, list[str]], list[str]]) -> None:
        super().__init__(
            _HOSTS, lambda fault, lab, text: text_of(change(fault, lab, text.splitlines()))
        )


@dataclass(frozen=True)
class KnownName(Effect):
    """Nothing by itself: refuses a name that the host does not know anyway."""

    name: Arg[str]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        name = fault[self.name]
        names = names_in(context.awake(fault.host).read_text(_HOSTS).splitlines())
        # Once: then it is this fault that removed it.
        if not context.record and name not in names:
            raise LabError(
                f"{fault.host} does not know the name {name!r} anyway",
                fix=hint(name, names, "names that it knows"),
            )

    def undo(self, fault: Fault, context: FaultContext) -> None:
        pass


def without_name(lines: Sequence[str], name: str) -> list[str]:
    """The lines of a hosts file with one name taken out; a line without names goes."""
    kept = []
    for line in lines:
        words = line.partition("#")[0].split()
        if name not in words[1:]:
            kept.append(line)
        elif names := [word for word in words[1:] if word != name]:
            kept.append("\t".join([words[0], " ".join(names)]))
    return kept


def with_line_first(lines: list[str], line: str) -> list[str]:
    """A line more, before all others but that of localhost, unless it is there."""
    if line in lines:
        return lines
    words = [each.split() for each in lines]
    place = next((i + 1 for i, each in enumerate(words) if "localhost" in each[1:]), 0)
    return [*lines[:place], line, *lines[place:]]


def with_address(lines: list[str], name: str, address: str) -> list[str]:
    """The lines with this address for a name, and no other."""
    line = f"{address}\t{name}"
    return lines if line in lines else with_line_first(without_name(lines, name), line)


def names_in(lines: Sequence[str]) -> list[str]:
    """All names of a hosts file."""
    return [name for line in lines for name in line.partition("#")[0].split()[1:]]


# ---- the faults ----

_NAME = Parsed("NAME", parse=str, tells_apart=True)
_SPOKEN_OF = HostArg("OTHER", is_on=False)
_ADDRESS = Parsed("ADDRESS", parse=ip_address, problem="is not an address")
# A documentation address, RFC 5737: nobody answers there.
_SILENT = "192.0.2.53"
# Documentation addresses, RFC 3849: global ones, which every resolver prefers to IPv4; local ones
# (fc00::/7) come first by RFC 3484 (glibc), last by RFC 6724.
_PREFIX = "2001:db8:796f:6b65"


class _Ipv6Address(IpLines):
    """An address for an interface that has none of IPv6."""

    def unsupported(self, _lab: Lab) -> str | None:
        return None if network.has_ipv6() else "this kernel has no IPv6"


def _own_ipv6(fault: Fault, lab: Lab) -> IPv6Address:
    """The address that the host's first interface has, or gets."""
    own = lab.topology.host(fault[HOST]).joined[0].address6
    number = [host.name for host in lab.topology.hosts].index(fault[HOST]) + 1
    return own.ip if own else IPv6Address(f"{_PREFIX}::{number:x}")


def _new_ipv6(fault: Fault, lab: Lab) -> list[str]:
    first = lab.topology.host(fault[HOST]).joined[0]
    new = f"address VERB {_own_ipv6(fault, lab)}/64 dev {first.name} nodad"
    return [] if first.address6 else [new]


def _route_to_silence(fault: Fault, lab: Lab) -> list[str]:
    # Packets to it vanish: without a route, asking would fail at once.
    return [f"route VERB {_SILENT} dev {lab.topology.host(fault[HOST]).joined[0].name}"]


NAMES = (
    # What Debian's installer writes.
    Kind(
        "hosts-loopback",
        (HOST,),
        "the host's own name is 127.0.1.1, as Debian writes it",
        "on {host}, {host} is 127.0.1.1",
        (HostsFile(lambda fault, _lab, lines: with_address(lines, fault[HOST], "127.0.1.1")),),
    ),
    # One host does not know a name that the others know.
    Kind(
        "no-resolve",
        (HOST, _NAME),
        "a name does not resolve on the host",
        "{name} does not resolve on {host}",
        (
            KnownName(_NAME),
            HostsFile(lambda fault, _lab, lines: without_name(lines, fault[_NAME])),
        ),
    ),
    # A line of /etc/hosts from when the other machine had another address.
    Kind(
        "stale-name",
        (HOST, _SPOKEN_OF, _ADDRESS),
        "on the host, another host's name leads to an address that nobody has",
        "on {host}, {other} is {address}",
        (
            HostsFile(
                lambda fault, _lab, lines: with_address(
                    lines, fault[_SPOKEN_OF], str(fault[_ADDRESS])
                )
            ),
        ),
    ),
    # The host takes itself for an IPv6 host, the others take it for an IPv4 one. Resolvers sort a
    # global IPv6 address first, whatever the order of the lines.
    Kind(
        "ipv6-first",
        (HOST,),
        "the host's own name resolves to an IPv6 address first, the others still see IPv4",
        "on {host}, {host} is an IPv6 address first",
        (
            _Ipv6Address(_new_ipv6),
            HostsFile(
                lambda fault, lab, lines: with_line_first(
                    lines, f"{_own_ipv6(fault, lab)}\t{fault[HOST]}"
                )
            ),
        ),
    ),
    # The name server of another network, from before the laptop was carried here.
    Kind(
        "silent-dns",
        (HOST,),
        "the only name server does not answer: names outside of /etc/hosts take seconds",
        "the name server of {host} does not answer",
        (
            TextFile(
                "/etc/resolv.conf",
                lambda _fault, _lab, _text: f"nameserver {_SILENT}\noptions timeout:5 attempts:2\n",
            ),
            IpLines(_route_to_silence),
        ),
    ),
)

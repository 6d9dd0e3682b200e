"""A host's own interfaces, routes, rules and neighbours, as `ip` sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import TYPE_CHECKING, Literal

from yoked.errors import LabError
from yoked.lab import network, tools
from yoked.lab.faults.args import HOST, LINK, OTHER, Parsed, PortRange, Whole, matching
from yoked.lab.faults.base import Fault, FaultContext, InMemory, Kind
from yoked.lab.faults.textfiles import KernelSetting

if TYPE_CHECKING:
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Interface


def forget_neighbours(lab: Lab) -> None:
    """Have everybody ask anew whose an address is; what was written down by hand stays."""
    places = [lab.switch, *(host.inside for host in lab.hosts.values() if host.alive)]
    for place in places:
        place.tool(["ip", "neighbour", "flush", "all"], check=False)


@dataclass(frozen=True)
class OwnInterface(InMemory):
    """The interface is off, or has another IPv4 address than it should. address: None is none."""

    is_off: bool = False
    address: Callable[[Fault, Lab, Interface], IPv4Interface] | None = None

    def apply(self, fault: Fault, context: FaultContext) -> None:
        lines = []
        for each in fault.interfaces(context.lab):
            if self.is_off:
                lines += [f"link set dev {each.name} down"]
                continue
            lines += [f"address flush dev {each.name}"]
            if self.address is not None:
                lines += [f"address add {self.address(fault, context.lab, each)} dev {each.name}"]
        tools.run_ip(context.host(fault.host), lines)
        if self.address is not None:
            forget_neighbours(context.lab)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Up, with the topology's addresses, but for what the other faults of this host ask."""
        host = context.lab.host(fault.host)
        for each in fault.interfaces(context.lab):
            wrong = None if self.address is None else str(self.address(fault, context.lab, each))
            if wrong not in (None, str(each.address4)):
                host.tool(["ip", "address", "del", str(wrong), "dev", each.name], check=False)
            lines = [f"link set dev {each.name} up", *network.addresses(each, "replace")]
            tools.run_ip(host, lines)
        forget_neighbours(context.lab)
        for other in context.others:
            if other.effects(OwnInterface) and other.host == fault.host:
                other.apply(context)


@dataclass(frozen=True)
class IpLines(InMemory):
    """Routes, rules or addresses more. lines: words of `ip`, with VERB for how to add them."""

    lines: Callable[[Fault, Lab], Iterable[str]]
    verb: Literal["add", "replace"] = "replace"
    neighbours: bool = False

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Once: `add` would pile them up."""
        host = context.host(fault.host)
        if self.verb == "add":
            self.undo(fault, context)
        for line in self.lines(fault, context.lab):
            host.tool(["ip", *line.replace("VERB", self.verb).split()])

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """They may be gone: somebody mended it, or the host was started anew."""
        host = context.lab.host(fault.host)
        for line in self.lines(fault, context.lab):
            host.tool(["ip", *line.replace("VERB", "del").split()], check=False)
        if self.neighbours:
            forget_neighbours(context.lab)


# ---- the faults ----

_PREFIX_BITS = Whole("LENGTH", least=8, most=32, prefix="/")
_ADDRESS4 = Parsed(
    "[ADDRESS/LENGTH]",
    parse=IPv4Interface,
    problem="is not an IPv4 address with a prefix length",
    # What VirtualBox gives to every virtual machine.
    default="10.0.2.15/24",
)
# The route's own word, and what a program then meets: EINVAL, EHOSTUNREACH, EACCES.
# Source: fib_props in Linux's net/ipv4/fib_semantics.c.
_ROUTE = Parsed(
    "[blackhole|unreachable|prohibit]",
    parse=matching("blackhole|unreachable|prohibit"),
    problem="is not a kind of route: blackhole, unreachable, prohibit",
    default="unreachable",
)
# Of the kernel itself; it asks for a first port of another parity than the last.
_KERNEL_PORTS = PortRange("FIRST LAST", least=1024)
# Before the main table, which is asked at 32766.
_RULE_CONTROLLER, _RULE_KILL = 5208, 5209
# Of no machine: locally administered, and not one that a lab gives out.
_NOBODY = "02:00:5e:00:53:01"


def _other_netmask(fault: Fault, _lab: Lab, interface: Interface) -> IPv4Interface:
    if interface.address4 is None:
        raise LabError(f"{interface.name} of {fault.host} has no IPv4 address to change")
    return IPv4Interface(f"{interface.address4.ip}/{fault[_PREFIX_BITS]}")


def _others_address(fault: Fault, lab: Lab, interface: Interface) -> IPv4Interface:
    for theirs in lab.topology.host(fault[OTHER]).joined:
        if theirs.network == interface.network and theirs.address4:
            return theirs.address4
    raise LabError(f"{fault[OTHER]} has no IPv4 address in the network of {interface.name}")


def _family(address: str) -> str:
    return "-6" if ":" in address else "-4"


def _routes_nowhere(fault: Fault, lab: Lab) -> list[str]:
    """One for each address, more precise than that of the network."""
    joined = lab.topology.host(fault[OTHER]).joined
    addresses = [str(address.ip) for each in joined for address in each.addresses]
    return [f"{_family(each)} route VERB {fault[_ROUTE]} {each}" for each in addresses]


def _kill_rules(fault: Fault, lab: Lab) -> list[str]:
    networks = {each.name: each for each in lab.topology.networks}
    lines = []
    for interface in fault.interfaces(lab):
        lan = networks[interface.network or ""]
        for subnet, controller in ((lan.subnet4, lan.bridge4), (lan.subnet6, lan.bridge6)):
            if subnet is None or controller is None:
                continue
            rule = f"{_family(str(subnet))} rule VERB pref"
            lines.append(f"{rule} {_RULE_CONTROLLER} to {controller.ip} lookup main")
            lines.append(f"{rule} {_RULE_KILL} to {subnet} prohibit")
    return lines


def _wrong_entries(fault: Fault, lab: Lab) -> list[str]:
    """For all addresses that the other has in the host's networks."""
    return [
        f"neighbour VERB {address.ip} lladdr {_NOBODY} nud permanent dev {own.name}"
        for own in lab.topology.host(fault[HOST]).joined
        for theirs in lab.topology.host(fault[OTHER]).joined
        if own.network == theirs.network
        for address in theirs.addresses
    ]


NETWORK = (
    # Somebody, or a network manager, switched the interface off.
    Kind(
        "interface-down",
        (LINK,),
        "the interface is switched off, as by `ip link set down`",
        "{link} is switched off",
        (OwnInterface(is_off=True),),
    ),
    Kind(
        "no-address",
        (LINK,),
        "the interface has no address, as when no DHCP server answers",
        "{link} has no address",
        (OwnInterface(),),
    ),
    # A netmask typed wrongly.
    Kind(
        "wrong-netmask",
        (LINK, _PREFIX_BITS),
        "the address has another prefix length: the others are in no network of the host",
        "the address of {link} has prefix /{length}",
        (OwnInterface(address=_other_netmask),),
    ),
    # A copied disk image, or an address given out twice. The other one is no longer reached for
    # sure, so the fault is on both.
    Kind(
        "same-address",
        (LINK, OTHER),
        "the host has the address of another host",
        "{link} has the address of {other}",
        (OwnInterface(address=_others_address),),
    ),
    Kind(
        "foreign-address",
        (LINK, _ADDRESS4),
        "the address is of a network that the others are not in, as behind a NAT",
        "{link} has the address {address}",
        (OwnInterface(address=lambda fault, _lab, _interface: fault[_ADDRESS4]),),
    ),
    # Left by a VPN, a container network or a person.
    Kind(
        "no-route",
        (HOST, OTHER, _ROUTE),
        "the first host has a route to the second that leads nowhere (default: unreachable)",
        lambda fault: f"on {fault[HOST]}, the route to {fault[OTHER]} is {fault[_ROUTE]}",
        (IpLines(_routes_nowhere),),
    ),
    Kind(
        "kill-switch",
        (LINK,),
        "a VPN's rule lets nothing out to the host's own networks (but to the controller)",
        lambda fault: (
            f"a VPN's kill switch on {fault.host} lets nothing out by "
            f"{fault[LINK].interface or 'any'}"
        ),
        (IpLines(_kill_rules, "add"),),
    ),
    # An entry for a network card that was replaced, written down by hand.
    Kind(
        "wrong-neighbour",
        (HOST, OTHER),
        "the first host has a fixed, wrong MAC for the second",
        f"{{host}} takes {_NOBODY} for the MAC of {{other}}",
        (IpLines(_wrong_entries, neighbours=True),),
    ),
    # Set for some other service.
    Kind(
        "port-range",
        (HOST, _KERNEL_PORTS),
        "the kernel gives programs only these ports when they ask for any",
        "{host} has ports {ports.first} to {ports.last} to give to programs",
        (KernelSetting("/proc/sys/net/ipv4/ip_local_port_range", "{ports.first} {ports.last}\n"),),
    ),
)

"""Faults of a host's own interface: switched off, without an address, or with a wrong one.

A host is written as HOST, meaning all its interfaces that lead anywhere, or HOST:INTERFACE.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Interface, NetmaskValueError
from typing import TYPE_CHECKING, Self

from yoked.errors import LabError
from yoked.lab import network, tools
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.links import LinkFault

if TYPE_CHECKING:
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Interface


# What VirtualBox gives to every virtual machine.
_BEHIND_NAT = "10.0.2.15/24"


def forget_neighbours(lab: Lab) -> None:
    """Have everybody ask anew whose an address is; what was written down by hand stays."""
    places = [lab.switch, *(host.inside for host in lab.hosts.values() if host.alive)]
    for place in places:
        place.tool(["ip", "neighbour", "flush", "all"], check=False)


@dataclass(frozen=True)
class AddressFault(LinkFault):
    """The interface is off, or has other addresses than it should."""

    def undo(self, act: Act) -> None:
        """Up, with the topology's addresses, but for what the other faults of this host ask."""
        host = act.lab.host(self.host)
        if not host.alive:
            return
        for each in self.meant(act.lab):
            lines = [f"link set dev {each.name} up", *network.addresses(each, "replace")]
            tools.run_ip(host, lines)
        forget_neighbours(act.lab)
        for other in act.others:
            if isinstance(other, AddressFault) and other.host == self.host:
                other.apply(act)


@dataclass(frozen=True)
class InterfaceDown(AddressFault):
    """Somebody, or a network manager, switched the interface off."""

    KIND = "interface-down"
    SUMMARY = "the interface is switched off, as by `ip link set down`"
    USAGE = "interface-down HOST[:INTERFACE]"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} is switched off"

    def apply(self, act: Act) -> None:
        """Off."""
        lines = [f"link set dev {each.name} down" for each in self.meant(act.lab)]
        tools.run_ip(act.host(self.host), lines)


@dataclass(frozen=True)
class NoAddress(AddressFault):
    """No DHCP server answered."""

    KIND = "no-address"
    SUMMARY = "the interface has no address, as when no DHCP server answers"
    USAGE = "no-address HOST[:INTERFACE]"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} has no address"

    def apply(self, act: Act) -> None:
        """None."""
        lines = [f"address flush dev {each.name}" for each in self.meant(act.lab)]
        tools.run_ip(act.host(self.host), lines)


@dataclass(frozen=True)
class OtherAddress(AddressFault):
    """The interface has another IPv4 address than it should, and no other."""

    @abstractmethod
    def address(self, lab: Lab, interface: Interface) -> IPv4Interface:
        """The one that it gets. Raises LabError where it cannot be told."""

    def apply(self, act: Act) -> None:
        """Flush, then add."""
        lines = []
        for each in self.meant(act.lab):
            lines += [f"address flush dev {each.name}"]
            lines += [f"address add {self.address(act.lab, each)} dev {each.name}"]
        tools.run_ip(act.host(self.host), lines)
        forget_neighbours(act.lab)

    def undo(self, act: Act) -> None:
        """The topology's, without the wrong one."""
        host = act.lab.host(self.host)
        if not host.alive:
            return
        for each in self.meant(act.lab):
            wrong = str(self.address(act.lab, each))
            if wrong != str(each.address4):
                host.tool(["ip", "address", "del", wrong, "dev", each.name], check=False)
        super().undo(act)


def _own(interface: Interface, fault: Fault) -> IPv4Interface:
    if interface.address4 is None:
        raise LabError(f"{interface.name} of {fault.hosts[0]} has no IPv4 address to change")
    return interface.address4


@dataclass(frozen=True)
class WrongNetmask(OtherAddress):
    """A netmask typed wrongly: the others are outside of what the host takes for its network."""

    KIND = "wrong-netmask"
    SUMMARY = "the address has another prefix length: the others are in no network of the host"
    USAGE = "wrong-netmask HOST[:INTERFACE] LENGTH"

    length: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link and the bits of a prefix."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        length = words.whole(words.take("LENGTH").removeprefix("/"), "LENGTH", 8, 32)
        return words.done(cls(host, interface, length))

    @property
    def text(self) -> str:
        """What it does."""
        return f"the address of {self.link} has prefix /{self.length}"

    def address(self, _lab: Lab, interface: Interface) -> IPv4Interface:
        """Its own, in another network."""
        return IPv4Interface(f"{_own(interface, self).ip}/{self.length}")


@dataclass(frozen=True)
class SameAddress(OtherAddress):
    """Two machines with one address: a copied disk image, or an address given out twice."""

    KIND = "same-address"
    SUMMARY = "the host has the address of another host"
    USAGE = "same-address HOST[:INTERFACE] OTHER"

    other: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link and another host."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        return words.done(cls(host, interface, words.another_host()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Both: the other one is no longer reached for sure."""
        return (self.host, self.other)

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} has the address of {self.other}"

    def address(self, lab: Lab, interface: Interface) -> IPv4Interface:
        """The one that the other has in the same network."""
        for theirs in lab.topology.host(self.other).joined:
            if theirs.network == interface.network and theirs.address4:
                return theirs.address4
        raise LabError(f"{self.other} has no IPv4 address in the network of {interface.name}")


@dataclass(frozen=True)
class ForeignAddress(OtherAddress):
    """An address that means something on the host alone, as behind the NAT of a virtual machine."""

    KIND = "foreign-address"
    SUMMARY = "the address is of a network that the others are not in, as behind a NAT"
    USAGE = "foreign-address HOST[:INTERFACE] [ADDRESS/LENGTH]"

    given: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link, and perhaps an address."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        text = words.optional() or _BEHIND_NAT
        try:
            address = IPv4Interface(text)
        except (AddressValueError, NetmaskValueError):
            raise words.wrong(f"{text!r} is not an IPv4 address with a prefix length") from None
        return words.done(cls(host, interface, str(address)))

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} has the address {self.given}"

    def address(self, _lab: Lab, _interface: Interface) -> IPv4Interface:
        """The named one."""
        return IPv4Interface(self.given)

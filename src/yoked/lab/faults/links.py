"""Faults of cables and of what lies between: brought about in the switch, where hosts cannot see.

A host is written as HOST, meaning all its interfaces that lead anywhere, or HOST:INTERFACE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from yoked.errors import LabError
from yoked.lab import shaping, tools
from yoked.lab.faults.base import Act, Fault, PairFault, Words, no_rules
from yoked.lab.topology import Host, Interface, Shape
from yoked.units import format_bit_per_s

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# The least that IPv4 hosts must take; below, the kernel refuses a device. Source: RFC 791.
_LEAST_MTU_BYTES = 68
_MOST_MTU_BYTES = 65535
_ETHERNET_MTU_BYTES = 1500


# ---- rules in the switch ----


def silence(act: Act, rules: Iterable[str], hook: str = "forward") -> None:
    """Add rules to the switch, in a chain of the fault's own that `unsilence` removes."""
    chain = f"{shaping.TABLE} {_chain(act, hook)}"
    # Before the chains that lose packets at random.
    begin = f"{{ type filter hook {hook} priority -10; policy accept; }}"
    tools.run_nft(
        act.lab.switch,
        [
            f"add table {shaping.TABLE}",
            f"add chain {chain} {begin}",
            f"flush chain {chain}",
            *(f'add rule {chain} {rule} comment "yoked:{act.id}"' for rule in rules),
        ],
    )


def unsilence(act: Act, hook: str = "forward") -> None:
    """Undo `silence`; harmless where there is nothing."""
    chain = f"{shaping.TABLE} {_chain(act, hook)}"
    # To delete what is not there is an error, so it is made first.
    lines = [f"add table {shaping.TABLE}", f"add chain {chain}"]
    lines += [f"flush chain {chain}", f"delete chain {chain}"]
    tools.run_nft(act.lab.switch, lines)


def _chain(act: Act, hook: str) -> str:
    return f"fault-{act.id}-{hook}"


def ways(lab: Lab, source: str, target: str) -> list[tuple[str, str]]:
    """Pairs of ports through which frames go from one host to the other."""
    return [
        (first.port, second.port)
        for first in lab.topology.host(source).joined
        for second in lab.topology.host(target).joined
        if first.network == second.network
    ]


# ---- faults of one cable ----


@dataclass(frozen=True)
class LinkFault(Fault):
    """A fault of a host's cable, or of all its cables. interface: None is all."""

    AFTER_BOOT = "again"

    interface: str | None

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From `HOST` or `HOST:INTERFACE`."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(*words.link()))

    def same_as(self, other: Fault) -> bool:
        """Also when one is of all interfaces and the other of one."""
        return (
            isinstance(other, LinkFault)
            and super().same_as(other)
            and (None in (self.interface, other.interface) or self.interface == other.interface)
        )

    def is_on(self, host: Host, interface: Interface) -> bool:
        """Whether this interface is meant."""
        named = self.interface in (None, interface.name)
        return host.name == self.host and named and interface.network is not None

    def meant(self, lab: Lab) -> list[Interface]:
        """The interfaces that it is of."""
        host = lab.topology.host(self.host)
        return [each for each in host.interfaces if self.is_on(host, each)]

    @property
    def link(self) -> str:
        """For people."""
        return self.host if self.interface is None else f"{self.interface} of {self.host}"


@dataclass(frozen=True)
class Cut(LinkFault):
    """The cable is out; or two hosts, and only they, no longer reach each other."""

    KIND = "cut"
    SUMMARY = "the cable is out (no carrier), or two hosts do not reach each other"
    USAGE = "cut HOST[:INTERFACE] | cut HOST OTHER"

    other: str | None = None

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link, or two hosts."""
        words = Words(cls.USAGE, lab, args)
        if len(args) == 2:
            return words.done(cls(words.host(), None, words.another_host()))
        return words.done(cls(*words.link()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """One, or both."""
        return (self.host,) if self.other is None else (self.host, self.other)

    def same_as(self, other: Fault) -> bool:
        """Two hosts in either order are the same."""
        if isinstance(other, Cut) and self.other and other.other:
            return set(self.hosts) == set(other.hosts)
        return super().same_as(other)

    @property
    def text(self) -> str:
        """What it does."""
        if self.other is None:
            return f"the cable of {self.link} is out"
        return f"{self.host} and {self.other} do not reach each other"

    def apply(self, act: Act) -> None:
        """Port down, or all frames between the two dropped, ARP included."""
        if self.other is None:
            self._set(act, "down")
            return
        if reason := no_rules(act.lab):
            raise LabError(f"cut between two hosts cannot be done here: {reason}")
        both = ways(act.lab, self.host, self.other)
        both += [(target, source) for source, target in both]
        silence(act, [f'iifname "{one}" oifname "{two}" drop' for one, two in both])

    def undo(self, act: Act) -> None:
        """As it was."""
        if self.other is not None:
            unsilence(act)
        elif act.lab.host(self.host).alive:
            self._set(act, "up")

    def _set(self, act: Act, state: str) -> None:
        ports = [each.port for each in self.meant(act.lab)]
        tools.run_ip(act.lab.switch, [f"link set dev {port} {state}" for port in ports])


@dataclass(frozen=True)
class SlowLink(LinkFault):
    """A port that agreed on 100 Mbit/s, a WiFi at the other end of the house."""

    KIND = "slow-link"
    SUMMARY = "the link carries less, both ways"
    USAGE = "slow-link HOST[:INTERFACE] RATE"

    rate_bit_per_s: float

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link and a rate."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        rest = " ".join([words.take("RATE"), *words.rest()])
        return words.done(cls(host, interface, words.rate_bit_per_s(rest)))

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} has a link of {format_bit_per_s(self.rate_bit_per_s)}"

    def apply(self, act: Act) -> None:
        """Shape both ends."""
        _settle(act.lab, self.host, (*act.others, self))

    def undo(self, act: Act) -> None:
        """The topology's shape again."""
        _settle(act.lab, self.host, act.others)


@dataclass(frozen=True)
class Lossy(LinkFault):
    """Frames vanish at random, each on its own."""

    KIND = "lossy"
    SUMMARY = "so many percent of the frames vanish, both ways"
    USAGE = "lossy HOST[:INTERFACE] PERCENT"
    WHOLE_NETWORK = True

    loss: float

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link and a percentage."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        percent = words.number(words.take("PERCENT").removesuffix("%"), "PERCENT", 0.001, 100)
        return words.done(cls(host, interface, percent / 100))

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """By netem or nft."""
        return None if lab.features.netem else no_rules(lab)

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.link} loses {100 * self.loss:g}% of its frames, each way"

    def apply(self, act: Act) -> None:
        """By netem, or by chance in the switch."""
        _settle(act.lab, self.host, (*act.others, self))

    def undo(self, act: Act) -> None:
        """The topology's loss again."""
        _settle(act.lab, self.host, act.others)


@dataclass(frozen=True)
class Mtu(LinkFault):
    """A hop in the middle carries less than both ends believe, and says nothing."""

    KIND = "mtu"
    SUMMARY = "frames above so many bytes vanish on the way, both ends believe in their own MTU"
    USAGE = "mtu HOST[:INTERFACE] BYTES"
    WHOLE_NETWORK = True

    mtu_bytes: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a link and a size."""
        words = Words(cls.USAGE, lab, args)
        host, interface = words.link()
        size = words.whole(words.take("BYTES"), "BYTES", _LEAST_MTU_BYTES, _MOST_MTU_BYTES)
        return words.done(cls(host, interface, size))

    @property
    def text(self) -> str:
        """What it does."""
        return f"the switch's port of {self.link} carries at most {self.mtu_bytes} bytes"

    def apply(self, act: Act) -> None:
        """A bridge drops what its port cannot carry, without a word to the sender."""
        # What TCP hands over in one piece passes a port unmeasured; senders must send frames.
        _settle(act.lab, self.host, (*act.others, self))
        self._set(act, self.mtu_bytes)

    def undo(self, act: Act) -> None:
        """What Ethernet has."""
        if act.lab.host(self.host).alive:
            self._set(act, _ETHERNET_MTU_BYTES)
        _settle(act.lab, self.host, act.others)

    def _set(self, act: Act, mtu_bytes: int) -> None:
        lines = [f"link set dev {each.port} mtu {mtu_bytes}" for each in self.meant(act.lab)]
        tools.run_ip(act.lab.switch, lines)


def _settle(lab: Lab, name: str, faults: Sequence[Fault]) -> None:
    """Give a host's links the shape that the topology and these faults ask for."""
    host = lab.topology.host(name)
    for interface in host.joined:
        shape = _shape(host, interface, faults)
        if lab.host(name).alive:
            own, switchs = shaping.shape_ends(interface, shape, lab.features)
            tools.run_tc(lab.host(name), own)
            tools.run_tc(lab.switch, switchs)
        # The switch's rules outlive the port of a host that is off.
        if lab.features.nft and not lab.features.netem:
            tools.run_nft(lab.switch, _loss_rules(interface.port, shape))
    _settle_batches(lab, faults)


def _settle_batches(lab: Lab, faults: Sequence[Fault]) -> None:
    """Have all hosts send frame by frame while any are dropped, and in pieces otherwise."""
    one_by_one = shaping.is_lossy(lab.topology)
    one_by_one = one_by_one or any(isinstance(fault, Lossy | Mtu) for fault in faults)
    for host in lab.topology.hosts:
        running = lab.host(host.name)
        if running.alive:
            lines = [
                line
                for each in host.joined
                for line in shaping.batching(
                    each.name, _shape(host, each, faults), one_by_one=one_by_one
                )
            ]
            tools.run_ip(running, lines)


def _shape(host: Host, interface: Interface, faults: Sequence[Fault]) -> Shape:
    shape = interface.shape
    for fault in faults:
        if isinstance(fault, SlowLink) and fault.is_on(host, interface):
            shape = replace(shape, rate_bit_per_s=fault.rate_bit_per_s)
        elif isinstance(fault, Lossy) and fault.is_on(host, interface):
            shape = replace(shape, loss=fault.loss)
    return shape


def _loss_rules(port: str, shape: Shape) -> list[str]:
    if shape.loss:
        return shaping.loss_rules(port, shape.loss, "yoked:loss")
    return shaping.no_loss_rules(port)


# ---- faults between two hosts ----


@dataclass(frozen=True)
class OneWay(PairFault):
    """Asymmetric rules or a NAT between: packets go one way only."""

    KIND = "one-way"
    SUMMARY = "packets from the first host to the second vanish, the other way they pass"
    USAGE = "one-way HOST OTHER"

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """Rules in the switch."""
        return no_rules(lab)

    @property
    def text(self) -> str:
        """What it does."""
        return f"packets from {self.host} to {self.other} vanish, those back pass"

    def apply(self, act: Act) -> None:
        """Drop all but ARP and its like: connecting times out, as with a router between."""
        silence(
            act,
            [
                f'iifname "{source}" oifname "{target}" {rule}'
                for source, target in ways(act.lab, self.host, self.other)
                for rule in (
                    "ether type arp accept",
                    "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
                    "drop",
                )
            ],
        )

    def undo(self, act: Act) -> None:
        """As it was."""
        unsilence(act)

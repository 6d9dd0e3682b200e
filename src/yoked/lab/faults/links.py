"""Cables: out, slow, lossy, or with a hop that carries less; brought about in the switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from yoked.errors import LabError
from yoked.lab import boot, shaping, tools
from yoked.lab.faults.args import HOST, LINK, OTHER, Arg, LinkArg, Number, Rate, Whole
from yoked.lab.faults.base import Effect, Fault, FaultContext, Kind, no_rules
from yoked.lab.faults.rules import SwitchRules, silence, unsilence, ways
from yoked.lab.topology import Host, Interface
from yoked.lab.topology import Shape as LinkShape
from yoked.units import format_bit_per_s

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_ETHERNET_MTU_BYTES = 1500


@dataclass(frozen=True)
class Unplugged(Effect):
    """The cable is out; or two hosts, and only they, no longer reach each other."""

    AFTER_BOOT = "again"

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Port down, or all frames between the two dropped, ARP included."""
        link = fault.link()
        if link.other is None:
            _set_ports(fault, context, "down")
            return
        if reason := no_rules(context.lab):
            raise LabError(f"cut between two hosts cannot be done here: {reason}")
        both = ways(context.lab, link.host, link.other)
        both += [(target, source) for source, target in both]
        silence(context, [f'iifname "{one}" oifname "{two}" drop' for one, two in both])

    def undo(self, fault: Fault, context: FaultContext) -> None:
        if fault.link().other is not None:
            unsilence(context)
        elif context.lab.host(fault.host).alive:
            _set_ports(fault, context, "up")


def _set_ports(fault: Fault, context: FaultContext, state: str) -> None:
    ports = [each.port for each in fault.interfaces(context.lab)]
    tools.run_ip(context.lab.switch, [f"link set dev {port} {state}" for port in ports])


@dataclass(frozen=True)
class Shape(Effect):
    """The link carries less, loses frames at random, or drops those above a size; both ways."""

    AFTER_BOOT = "again"

    rate_bit_per_s: Arg[float] | None = None
    loss_percent: Arg[float] | None = None
    mtu_bytes: Arg[int] | None = None

    @property
    def whole_network(self) -> bool:
        """What drops frames does: all hosts must send them one by one then."""
        return self.rate_bit_per_s is None

    def unsupported(self, lab: Lab) -> str | None:
        """Loss is netem's or nft's."""
        return None if self.loss_percent is None or lab.features.netem else no_rules(lab)

    def apply(self, fault: Fault, context: FaultContext) -> None:
        # What TCP hands over in one piece passes a port unmeasured; senders must send frames.
        _settle(context.lab, fault.host, (*context.others, fault))
        if self.mtu_bytes is not None:
            # A bridge drops what its port cannot carry, without a word to the sender.
            _set_ports(fault, context, f"mtu {fault[self.mtu_bytes]}")

    def undo(self, fault: Fault, context: FaultContext) -> None:
        if self.mtu_bytes is not None and context.lab.host(fault.host).alive:
            _set_ports(fault, context, f"mtu {_ETHERNET_MTU_BYTES}")
        _settle(context.lab, fault.host, context.others)

    def of(self, fault: Fault, shape: LinkShape) -> LinkShape:
        """A shape with what this fault changes of it."""
        if self.rate_bit_per_s is not None:
            shape = replace(shape, rate_bit_per_s=fault[self.rate_bit_per_s])
        if self.loss_percent is not None:
            shape = replace(shape, loss=fault[self.loss_percent] / 100)
        return shape


def _settle(lab: Lab, name: str, faults: Sequence[Fault]) -> None:
    """Give a host's links the shape that the topology and these faults ask for."""
    host = lab.topology.host(name)

    def shape_of(interface: Interface) -> LinkShape:
        return _shape(host, interface, faults)

    if lab.host(name).alive:
        boot.shape_host(lab, host, lab.host(name).inside, shape_of)
    # The switch's rules outlive the port of a host that is off.
    if lab.features.nft and not lab.features.netem:
        for interface in host.joined:
            tools.run_nft(lab.switch, _loss_rules(interface.port, shape_of(interface)))
    _settle_batches(lab, faults)


def _settle_batches(lab: Lab, faults: Sequence[Fault]) -> None:
    """Have all hosts send frame by frame while any are dropped, and in pieces otherwise."""
    effects = [effect for fault in faults for effect in fault.effects(Shape)]
    one_by_one = shaping.is_lossy(lab.topology) or any(each.whole_network for each in effects)
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


def _shape(host: Host, interface: Interface, faults: Sequence[Fault]) -> LinkShape:
    shape = interface.shape
    for fault in faults:
        for effect in fault.effects(Shape):
            if fault.link().is_on(host, interface):
                shape = effect.of(fault, shape)
    return shape


def _loss_rules(port: str, shape: LinkShape) -> list[str]:
    if shape.loss:
        return shaping.loss_rules(port, shape.loss, "yoked:loss")
    return shaping.no_loss_rules(port)


# ---- the faults ----

_LINK_OR_PAIR = LinkArg("HOST[:INTERFACE] | cut HOST OTHER", or_pair=True)
_RATE = Rate()
_LOSS = Number("PERCENT", least=0.001, most=100, suffix="%")
# The least that IPv4 hosts must take; below, the kernel refuses a device. Source: RFC 791.
_MTU = Whole("BYTES", least=68, most=65535)


def _cut_text(fault: Fault) -> str:
    link = fault[_LINK_OR_PAIR]
    if link.other is None:
        return f"the cable of {link} is out"
    return f"{link.host} and {link.other} do not reach each other"


def _isolated(fault: Fault, lab: Lab) -> list[str]:
    ports = [each.port for each in fault.interfaces(lab)]
    return [f'{way} "{port}" drop' for port in ports for way in ("iifname", "oifname")]


def _one_way(fault: Fault, lab: Lab) -> list[str]:
    # ARP and its like pass: connecting times out, as with a router between.
    return [
        f'iifname "{source}" oifname "{target}" {rule}'
        for source, target in ways(lab, fault[HOST], fault[OTHER])
        for rule in (
            "ether type arp accept",
            "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
            "drop",
        )
    ]


CABLES = (
    Kind(
        "cut",
        (_LINK_OR_PAIR,),
        "the cable is out (no carrier), or two hosts do not reach each other",
        _cut_text,
        (Unplugged(),),
    ),
    # Asymmetric rules or a NAT between.
    Kind(
        "one-way",
        (HOST, OTHER),
        "packets from the first host to the second vanish, the other way they pass",
        "packets from {host} to {other} vanish, those back pass",
        (SwitchRules(_one_way),),
    ),
    # An access point that lets its guests reach the router, and nobody else.
    Kind(
        "client-isolation",
        (LINK,),
        "the host reaches the router (and the controller), but no other host, nor they it",
        "the access point lets {link} reach the router alone",
        (SwitchRules(_isolated),),
    ),
    # A port that agreed on 100 Mbit/s, a WiFi at the other end of the house.
    Kind(
        "slow-link",
        (LINK, _RATE),
        "the link carries less, both ways",
        lambda fault: f"{fault[LINK]} has a link of {format_bit_per_s(fault[_RATE])}",
        (Shape(rate_bit_per_s=_RATE),),
    ),
    Kind(
        "lossy",
        (LINK, _LOSS),
        "so many percent of the frames vanish, both ways",
        "{link} loses {percent:g}% of its frames, each way",
        (Shape(loss_percent=_LOSS),),
    ),
    # A hop in the middle carries less than both ends believe, and says nothing.
    Kind(
        "mtu",
        (LINK, _MTU),
        "frames above so many bytes vanish on the way, both ends believe in their own MTU",
        "the switch's port of {link} carries at most {bytes} bytes",
        (Shape(mtu_bytes=_MTU),),
    ),
)

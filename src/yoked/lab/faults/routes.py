"""Faults of the way from one host to another: routes, rules, and who has an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from yoked.lab import tools
from yoked.lab.faults.base import Act, Fault, PairFault, Words
from yoked.lab.faults.interfaces import forget_neighbours
from yoked.lab.faults.links import LinkFault

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# The route's own word, and what a program then meets: EINVAL, EHOSTUNREACH, EACCES.
# Source: fib_props in Linux's net/ipv4/fib_semantics.c.
_ROUTES = ("blackhole", "unreachable", "prohibit")
# Before the main table, which is asked at 32766.
_RULE_CONTROLLER, _RULE_KILL = 5208, 5209
# Of no machine: locally administered, and not one that a lab gives out.
_NOBODY = "02:00:5e:00:53:01"


def _addresses(lab: Lab, name: str) -> list[str]:
    """All IPv4 and IPv6 addresses of a host that others may dial."""
    return [
        str(address.ip)
        for each in lab.topology.host(name).joined
        for address in (each.address4, each.address6)
        if address is not None
    ]


def _family(address: str) -> str:
    return "-6" if ":" in address else "-4"


@dataclass(frozen=True)
class NoRoute(PairFault):
    """A route that leads nowhere, left by a VPN, a container network or a person."""

    KIND = "no-route"
    SUMMARY = "the first host has a route to the second that leads nowhere (default: unreachable)"
    USAGE = "no-route HOST OTHER [blackhole|unreachable|prohibit]"
    AFTER_BOOT = "again"
    NEEDS_HOST = True

    route: str = "unreachable"

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From two hosts, and perhaps the kind of the route."""
        words = Words(cls.USAGE, lab, args)
        host, other, route = words.host(), words.another_host(), words.optional() or "unreachable"
        if route not in _ROUTES:
            raise words.wrong(f"{route!r} is not a kind of route: {', '.join(_ROUTES)}")
        return words.done(cls(host, other, route))

    def same_as(self, other: Fault) -> bool:
        """Also with another kind of route: there is one route to an address."""
        return isinstance(other, NoRoute) and self.hosts == other.hosts

    @property
    def text(self) -> str:
        """What it does."""
        return f"on {self.host}, the route to {self.other} is {self.route}"

    def apply(self, act: Act) -> None:
        """One for each address, more precise than that of the network."""
        host = act.host(self.host)
        for address in _addresses(act.lab, self.other):
            words = ["ip", _family(address), "route", "replace", self.route, address]
            host.tool(words)

    def undo(self, act: Act) -> None:
        """They may be gone: somebody mended it, or the host was started anew."""
        host = act.lab.host(self.host)
        for address in _addresses(act.lab, self.other) if host.alive else ():
            words = ["ip", _family(address), "route", "del", self.route, address]
            host.tool(words, check=False)


@dataclass(frozen=True)
class KillSwitch(LinkFault):
    """A VPN's kill switch: nothing may leave for the home's own network."""

    KIND = "kill-switch"
    SUMMARY = "a VPN's rule lets nothing out to the host's own networks (but to the controller)"
    USAGE = "kill-switch HOST[:INTERFACE]"

    @property
    def text(self) -> str:
        """What it does."""
        return f"a VPN's kill switch on {self.host} lets nothing out by {self.interface or 'any'}"

    def apply(self, act: Act) -> None:
        """Rules that come before the main table."""
        host = act.host(self.host)
        self.undo(act)
        for words in self._rules(act.lab):
            host.tool(["ip", words[0], "rule", "add", *words[1:]])

    def undo(self, act: Act) -> None:
        """Without them."""
        host = act.lab.host(self.host)
        for words in self._rules(act.lab) if host.alive else ():
            host.tool(["ip", words[0], "rule", "del", *words[1:]], check=False)

    def _rules(self, lab: Lab) -> list[list[str]]:
        networks = {each.name: each for each in lab.topology.networks}
        rules = []
        for interface in self.meant(lab):
            lan = networks[interface.network or ""]
            for subnet, controller in ((lan.subnet4, lan.bridge4), (lan.subnet6, lan.bridge6)):
                if subnet is None or controller is None:
                    continue
                family = _family(str(subnet))
                pass_on = ["pref", str(_RULE_CONTROLLER), "to", str(controller.ip)]
                rules.append([family, *pass_on, "lookup", "main"])
                rules.append([family, "pref", str(_RULE_KILL), "to", str(subnet), "prohibit"])
        return rules


@dataclass(frozen=True)
class WrongNeighbour(PairFault):
    """An entry for a network card that was replaced, written down by hand."""

    KIND = "wrong-neighbour"
    SUMMARY = "the first host has a fixed, wrong MAC for the second"
    USAGE = "wrong-neighbour HOST OTHER"
    AFTER_BOOT = "again"
    NEEDS_HOST = True

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} takes {_NOBODY} for the MAC of {self.other}"

    def apply(self, act: Act) -> None:
        """A permanent entry."""
        lines = [
            f"neighbour replace {each} lladdr {_NOBODY} nud permanent" for each in self._on(act)
        ]
        tools.run_ip(act.host(self.host), lines)

    def undo(self, act: Act) -> None:
        """None: the kernel asks."""
        host = act.lab.host(self.host)
        for each in self._on(act) if host.alive else ():
            host.tool(["ip", "neighbour", "del", *each.split()], check=False)
        forget_neighbours(act.lab)

    def _on(self, act: Act) -> list[str]:
        """`ADDRESS dev INTERFACE` of what the other has in the host's networks."""
        pairs = [
            (own.name, theirs)
            for own in act.lab.topology.host(self.host).joined
            for theirs in act.lab.topology.host(self.other).joined
            if own.network == theirs.network
        ]
        return [
            f"{address.ip} dev {device}"
            for device, theirs in pairs
            for address in (theirs.address4, theirs.address6)
            if address is not None
        ]

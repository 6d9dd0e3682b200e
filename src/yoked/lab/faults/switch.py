"""Faults of the box that all are plugged into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from yoked.lab.faults.base import Act, no_rules
from yoked.lab.faults.links import LinkFault, silence, unsilence

if TYPE_CHECKING:
    from yoked.lab.lab import Lab


@dataclass(frozen=True)
class ClientIsolation(LinkFault):
    """An access point that lets its guests reach the router, and nobody else."""

    KIND = "client-isolation"
    SUMMARY = "the host reaches the router (and the controller), but no other host, nor they it"
    USAGE = "client-isolation HOST[:INTERFACE]"
    NEEDS_HOST = False

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """Rules in the switch."""
        return no_rules(lab)

    @property
    def text(self) -> str:
        """What it does."""
        return f"the access point lets {self.link} reach the router alone"

    def apply(self, act: Act) -> None:
        """Drop what is handed on from port to port, ARP included; the bridge's own is not."""
        ports = [each.port for each in self.meant(act.lab)]
        silence(act, [f'{way} "{port}" drop' for port in ports for way in ("iifname", "oifname")])

    def undo(self, act: Act) -> None:
        """As it was."""
        unsilence(act)

"""A firewall on a host, as ufw or firewalld would set it up: stateful, open for ssh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from yoked.lab import tools
from yoked.lab.faults.base import Act, Fault, Words, lacking

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_TABLE = "inet yoked_firewall"
# Where torchrun meets; open in the common case of failure, in which only later ports are closed.
RENDEZVOUS_PORT = 29500
_SSH_PORT = 22


@dataclass(frozen=True)
class Firewall(Fault):
    """Incoming connections are dropped or rejected, but for some ports."""

    KIND = "firewall"
    SUMMARY = "connections to the host are dropped, but for ssh, port 29500 and the named ports"
    USAGE = "firewall HOST [PORT...] [--reject] [--close-rendezvous]"
    AFTER_BOOT = "again"

    ports: tuple[int, ...]
    reject: bool
    close_rendezvous: bool

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, open ports and flags."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        ports = tuple(words.whole(word, "PORT", 1, 65535) for word in words.rest())
        reject, closed = words.flag("--reject"), words.flag("--close-rendezvous")
        return words.done(cls(host, ports, reject, closed))

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """It is nft's."""
        return lacking("nft")

    @property
    def open_ports(self) -> tuple[int, ...]:
        """Ports at which everybody may connect, in order."""
        rendezvous = () if self.close_rendezvous else (RENDEZVOUS_PORT,)
        return tuple(sorted({_SSH_PORT, *rendezvous, *self.ports}))

    @property
    def text(self) -> str:
        """What it does."""
        verb = "rejects" if self.reject else "drops"
        ports = ", ".join(str(port) for port in self.open_ports)
        return f"a firewall on {self.host} {verb} connections but to port {ports}"

    def rules(self) -> list[str]:
        """Lines for nft. A rejected connect fails with errno 113, as firewalld has it."""
        ports = ", ".join(str(port) for port in self.open_ports)
        chain = f"{_TABLE} input"
        rules = [
            "ct state established,related accept",
            'iifname "lo" accept',
            "meta l4proto { icmp, ipv6-icmp } accept",
            f"tcp dport {{ {ports} }} accept",
        ]
        if self.reject:
            rules.append("reject with icmpx admin-prohibited")
        return [
            *_no_rules(),
            f"add table {_TABLE}",
            f"add chain {chain} {{ type filter hook input priority filter; policy drop; }}",
            *(f"add rule {chain} {rule}" for rule in rules),
        ]

    def apply(self, act: Act) -> None:
        """Load the rules, all at once."""
        tools.run_nft(act.host(self.host), self.rules())

    def undo(self, act: Act) -> None:
        """Remove the table; a host that is down has none."""
        host = act.lab.host(self.host)
        if host.alive:
            tools.run_nft(host, _no_rules())


def _no_rules() -> list[str]:
    # To delete what is not there is an error, so it is made first.
    return [f"add table {_TABLE}", f"delete table {_TABLE}"]

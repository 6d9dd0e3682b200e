"""Rules on a host beyond a plain firewall: outgoing, a range of ports, too many at once."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from yoked.lab import tools
from yoked.lab.faults.base import Act, Fault, Words, lacking

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# ssh, names and time, as a firewall for outgoing traffic leaves open.
_OUT_PORTS = "22, 53, 123"
_SSH_PORT = 22


@dataclass(frozen=True)
class RulesFault(Fault):
    """Rules in a table of their own, on the host itself."""

    AFTER_BOOT = "again"
    HOOK: ClassVar[str] = "input"

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """They are nft's."""
        return lacking("nft")

    @abstractmethod
    def rules(self) -> list[str]:
        """What the chain does with a packet; the last word is accept."""

    @property
    def _table(self) -> str:
        return f"inet yoked_{self.KIND.replace('-', '_')}"

    def apply(self, act: Act) -> None:
        """Load the rules, all at once."""
        chain = f"{self._table} {self.HOOK}"
        begin = f"{{ type filter hook {self.HOOK} priority filter; policy accept; }}"
        lines = [
            *self._no_rules(),
            f"add table {self._table}",
            f"add chain {chain} {begin}",
            *(f"add rule {chain} {rule}" for rule in self.rules()),
        ]
        tools.run_nft(act.host(self.host), lines)

    def undo(self, act: Act) -> None:
        """Remove the table; a host that is down has none."""
        host = act.lab.host(self.host)
        if host.alive:
            tools.run_nft(host, self._no_rules())

    def _no_rules(self) -> list[str]:
        # To delete what is not there is an error, so it is made first.
        return [f"add table {self._table}", f"delete table {self._table}"]


@dataclass(frozen=True)
class FirewallOut(RulesFault):
    """A firewall for outgoing connections, as security software sets it up."""

    KIND = "firewall-out"
    SUMMARY = "new connections from the host are dropped, but to ports 22, 53 and 123"
    USAGE = "firewall-out HOST [--reject]"
    HOOK = "output"

    reject: bool = False

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and perhaps the flag."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.flag("--reject")))

    @property
    def text(self) -> str:
        """What it does."""
        verb = "rejects" if self.reject else "drops"
        return f"a firewall on {self.host} {verb} what goes out, but to ports {_OUT_PORTS}"

    def rules(self) -> list[str]:
        """A rejected connect fails at once."""
        end = "reject with icmpx admin-prohibited" if self.reject else "drop"
        return [
            'oifname "lo" accept',
            "ct state established,related accept",
            f"meta l4proto {{ tcp, udp }} th dport {{ {_OUT_PORTS} }} accept",
            f"meta l4proto tcp {end}",
        ]


@dataclass(frozen=True)
class ClosedRange(RulesFault):
    """Some high ports are closed: half of all launches work."""

    KIND = "closed-ports"
    SUMMARY = "connections to a range of the host's ports are dropped, others pass"
    USAGE = "closed-ports HOST FIRST-LAST"

    first: int
    last: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a range."""
        words = Words(cls.USAGE, lab, args)
        host, text = words.host(), words.take("FIRST-LAST")
        if not (found := re.fullmatch(r"(\d+)-(\d+)", text)):
            raise words.wrong(f"{text!r} is not a range of ports", "write it as in 32768-45000")
        first = words.whole(found[1], "FIRST", 1, 65535)
        return words.done(cls(host, first, words.whole(found[2], "LAST", first, 65535)))

    @property
    def text(self) -> str:
        """What it does."""
        return f"a firewall on {self.host} drops connections to ports {self.first} to {self.last}"

    def rules(self) -> list[str]:
        """New ones alone: a connection that the host itself made may come from such a port."""
        ports = f"{self.first}-{self.last}"
        return ['iifname "lo" accept', f"ct state new tcp dport {ports} drop"]


@dataclass(frozen=True)
class ConnectionLimit(RulesFault):
    """Protection against port scans, which a job of many ranks looks like."""

    KIND = "connection-limit"
    SUMMARY = "more than so many new connections a minute are dropped (ssh is spared)"
    USAGE = "connection-limit HOST COUNT"

    count: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a number."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.whole(words.take("COUNT"), "COUNT", 1, 100_000)))

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} takes {self.count} new connections a minute, and drops the others"

    def rules(self) -> list[str]:
        """A bucket that is full at the start."""
        over = f"limit rate over {self.count}/minute burst {self.count} packets"
        return ['iifname "lo" accept', f"ct state new tcp dport != {_SSH_PORT} {over} drop"]

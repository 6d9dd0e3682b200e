"""Faults of a host's settings: the kernel's ports, who looks up names, what a logout ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Self

from yoked.errors import LabError
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.names import HostsFileFault, with_line_first, without_name
from yoked.lab.faults.textfiles import TextFileFault
from yoked.lab.topology import hint

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
# Of the kernel itself; it asks for a first port of another parity than the last.
_LEAST_PORT, _MOST_PORT = 1024, 65535
# A documentation address, RFC 5737: nobody answers there.
_SILENT = "192.0.2.53"


@dataclass(frozen=True)
class PortRange(Fault):
    """A kernel with next to no ports for connections of its own, set for some other service."""

    KIND = "port-range"
    SUMMARY = "the kernel gives programs only these ports when they ask for any"
    USAGE = "port-range HOST FIRST LAST"
    AFTER_BOOT = "again"

    first: int
    last: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and two ports."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        first = words.whole(words.take("FIRST"), "FIRST", _LEAST_PORT, _MOST_PORT)
        return words.done(
            cls(host, first, words.whole(words.take("LAST"), "LAST", first, _MOST_PORT))
        )

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has ports {self.first} to {self.last} to give to programs"

    def apply(self, act: Act) -> None:
        """The network's own setting, of this host alone."""
        host = act.awake(self.host)
        if "before" not in act.record:
            act.remember(before=host.read_text(_PORT_RANGE))
        host.write_text(_PORT_RANGE, f"{self.first} {self.last}\n")

    def undo(self, act: Act) -> None:
        """As it was; a host that was started anew has the kernel's."""
        host = act.lab.host(self.host)
        if host.alive and "before" in act.record:
            act.awake(self.host).write_text(_PORT_RANGE, act.record["before"])


@dataclass(frozen=True)
class SilentNameServer(TextFileFault):
    """The name server of another network, from before the laptop was carried here."""

    KIND = "silent-dns"
    SUMMARY = "the only name server does not answer: names outside of /etc/hosts take seconds"
    USAGE = "silent-dns HOST"
    AFTER_BOOT = "again"

    @property
    def text(self) -> str:
        """What it does."""
        return f"the name server of {self.host} does not answer"

    def path(self, _act: Act) -> str:
        """resolv.conf(5)."""
        return "/etc/resolv.conf"

    def change(self, _act: Act, _text: str) -> str:
        """One server, and the resolver's own patience."""
        return f"nameserver {_SILENT}\noptions timeout:5 attempts:2\n"

    def apply(self, act: Act) -> None:
        """Packets to it vanish: without a route, asking would fail at once."""
        super().apply(act)
        device = act.lab.topology.host(self.host).joined[0].name
        act.host(self.host).tool(["ip", "route", "replace", _SILENT, "dev", device])

    def undo(self, act: Act) -> None:
        """The file, and no way to the server."""
        super().undo(act)
        act.lab.host(self.host).tool(["ip", "route", "del", _SILENT], check=False)


@dataclass(frozen=True)
class StaleName(HostsFileFault):
    """A line of /etc/hosts from when the other machine had another address."""

    KIND = "stale-name"
    SUMMARY = "on the host, another host's name leads to an address that nobody has"
    USAGE = "stale-name HOST OTHER ADDRESS"

    other: str
    address: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From two hosts and an address."""
        words = Words(cls.USAGE, lab, args)
        host, other, text = words.host(), words.another_host(), words.take("ADDRESS")
        try:
            return words.done(cls(host, other, str(ip_address(text))))
        except ValueError:
            raise words.wrong(f"{text!r} is not an address") from None

    def same_as(self, other: Fault) -> bool:
        """Of the same name."""
        mine = (self.host, self.other)
        return isinstance(other, StaleName) and mine == (other.host, other.other)

    @property
    def text(self) -> str:
        """What it does."""
        return f"on {self.host}, {self.other} is {self.address}"

    def change(self, _act: Act, lines: list[str]) -> list[str]:
        """Another line instead of the right one."""
        line = f"{self.address}\t{self.other}"
        return lines if line in lines else with_line_first(without_name(lines, self.other), line)


@dataclass(frozen=True)
class LogoutKills(TextFileFault):
    """systemd ends all of an account's processes with its last login."""

    KIND = "logout-kills"
    SUMMARY = "logind.conf says KillUserProcesses=yes: a logout ends what was left running"
    USAGE = "logout-kills HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"a logout on {self.host} ends the account's processes"

    def path(self, _act: Act) -> str:
        """logind.conf(5)."""
        return "/etc/systemd/logind.conf"

    def change(self, _act: Act, text: str) -> str:
        """As some distributions and administrators have it."""
        section = "[Login]"
        lines = text.splitlines() or [section]
        if section not in lines:
            raise LabError(
                "logind.conf has no [Login]", fix=hint(section, lines, "lines that it has")
            )
        lines.insert(lines.index(section) + 1, "KillUserProcesses=yes")
        return "".join(f"{line}\n" for line in lines)

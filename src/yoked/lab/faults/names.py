"""Faults of names: what a host's /etc/hosts says of itself and of the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Self

from yoked.errors import LabError
from yoked.lab import network, tools
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.topology import hint

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_HOSTS = "/etc/hosts"
# Documentation addresses, RFC 3849: global ones, which every resolver prefers to IPv4; local ones
# (fc00::/7) come first by RFC 3484 (glibc), last by RFC 6724.
_PREFIX = "2001:db8:796f:6b65"


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


def with_line_first(lines: Sequence[str], line: str) -> list[str]:
    """A line more, before all others but that of localhost."""
    words = [each.split() for each in lines]
    place = next((i + 1 for i, each in enumerate(words) if "localhost" in each[1:]), 0)
    return [*lines[:place], line, *lines[place:]]


def names_in(lines: Sequence[str]) -> list[str]:
    """All names of a hosts file."""
    return [name for line in lines for name in line.partition("#")[0].split()[1:]]


def undone(now: Sequence[str], removed: Sequence[str], added: Sequence[str]) -> list[str]:
    """The lines of today without what was added, and with what was removed, each only once.

    What others changed since, and what a person mended by hand, stays.
    """
    extra = [each.split() for each in added]
    kept = [line for line in now if line.split() not in extra]
    here = [line.split() for line in kept]
    return [*kept, *(line for line in removed if line.split() not in here)]


def _lines(act: Act, host: str) -> list[str]:
    return act.writable(host).read_text(_HOSTS).splitlines()


def _write(act: Act, host: str, lines: Sequence[str]) -> None:
    act.writable(host).write_text(_HOSTS, "".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class HostsFileFault(Fault):
    """A fault in /etc/hosts.

    Its record: the lines without any such fault, and its place among those of its host.
    """

    AFTER_BOOT = "again"
    WRITES_FILES = True

    @abstractmethod
    def change(self, act: Act, lines: list[str]) -> list[str]:
        """The lines as this fault has them."""

    def apply(self, act: Act) -> None:
        """Change the lines."""
        now = _lines(act, self.host)
        if "base" not in act.record:
            base, place = now, 1
            if beside := self._beside(act):
                others = [fault for fault, _ in beside]
                base = _moved(act, now, beside[-1][1]["base"], others, [])
                place += beside[-1][1]["place"]
            act.remember(base=base, place=place)
        new = self.change(act, now)
        if new != now:
            _write(act, self.host, new)

    def undo(self, act: Act) -> None:
        """Change them to what the others ask for."""
        if "base" not in act.record:
            return
        beside = self._beside(act)
        others = [fault for fault, _ in beside]
        below = sum(record["place"] < act.record["place"] for _, record in beside)
        now = _lines(act, self.host)
        together = [*others[:below], self, *others[below:]]
        new = _moved(act, now, act.record["base"], together, others)
        if new != now:
            _write(act, self.host, new)

    def _beside(self, act: Act) -> list[tuple[HostsFileFault, dict[str, Any]]]:
        """The others in this file with their records, in the order of their places."""
        found = [
            (fault, record)
            for fault, record in act.beside(self.host)
            if isinstance(fault, HostsFileFault) and "base" in record
        ]
        return sorted(found, key=lambda pair: int(pair[1]["place"]))


def _moved(
    act: Act,
    now: list[str],
    base: list[str],
    before: Sequence[HostsFileFault],
    after: Sequence[HostsFileFault],
) -> list[str]:
    """The lines of today, with some faults instead of others; what people changed stays.

    base: the lines without any of them.
    """
    old, new = base, base
    for fault in before:
        old = fault.change(act, old)
    for fault in after:
        new = fault.change(act, new)
    if now == old:
        return new
    removed = [line for line in new if line not in old]
    return undone(now, removed, [line for line in old if line not in new])


@dataclass(frozen=True)
class HostsLoopback(HostsFileFault):
    """What Debian's installer writes: the own name is a loopback address."""

    KIND = "hosts-loopback"
    SUMMARY = "the host's own name is 127.0.1.1, as Debian writes it"
    USAGE = "hosts-loopback HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"on {self.host}, {self.host} is 127.0.1.1"

    def change(self, _act: Act, lines: list[str]) -> list[str]:
        """Debian's line instead of the one with the address."""
        line = f"127.0.1.1\t{self.host}"
        if line in lines:
            return lines
        return with_line_first(without_name(lines, self.host), line)


@dataclass(frozen=True)
class NoResolve(HostsFileFault):
    """One host does not know a name that the others know."""

    KIND = "no-resolve"
    SUMMARY = "a name does not resolve on the host"
    USAGE = "no-resolve HOST NAME"

    name: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a name."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.take("NAME")))

    def same_as(self, other: Fault) -> bool:
        """Of the same name."""
        return isinstance(other, NoResolve) and (self.host, self.name) == (other.host, other.name)

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.name} does not resolve on {self.host}"

    def apply(self, act: Act) -> None:
        """Unless the host does not know the name anyway."""
        names = names_in(_lines(act, self.host))
        if self.name not in names and not act.record:
            raise LabError(
                f"{self.host} does not know the name {self.name!r} anyway",
                fix=hint(self.name, names, "names that it knows"),
            )
        super().apply(act)

    def change(self, _act: Act, lines: list[str]) -> list[str]:
        """The name is nowhere."""
        return without_name(lines, self.name)


@dataclass(frozen=True)
class Ipv6First(HostsFileFault):
    """The host takes itself for an IPv6 host, the others take it for an IPv4 one."""

    KIND = "ipv6-first"
    SUMMARY = "the host's own name resolves to an IPv6 address first, the others still see IPv4"
    USAGE = "ipv6-first HOST"

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """By a kernel without IPv6."""
        return None if network.has_ipv6() else "this kernel has no IPv6"

    @property
    def text(self) -> str:
        """What it does."""
        return f"on {self.host}, {self.host} is an IPv6 address first"

    def address(self, lab: Lab) -> IPv6Address:
        """The one that its first interface has, or gets."""
        own = lab.topology.host(self.host).joined[0].address6
        number = [host.name for host in lab.topology.hosts].index(self.host) + 1
        return own.ip if own else IPv6Address(f"{_PREFIX}::{number:x}")

    def change(self, act: Act, lines: list[str]) -> list[str]:
        """A line more; resolvers sort a global IPv6 address first, whatever the order."""
        line = f"{self.address(act.lab)}\t{self.host}"
        return lines if line in lines else with_line_first(lines, line)

    def apply(self, act: Act) -> None:
        """Address and name."""
        if device := self._device(act.lab):
            words = f"address replace {self.address(act.lab)}/64 dev {device} nodad"
            tools.run_ip(act.host(self.host), [words])
        super().apply(act)

    def undo(self, act: Act) -> None:
        """Neither."""
        super().undo(act)
        if device := self._device(act.lab):
            # It may be gone: the host was started anew, or somebody mended it.
            words = f"ip address del {self.address(act.lab)}/64 dev {device}"
            act.host(self.host).tool(words.split(), check=False)

    def _device(self, lab: Lab) -> str | None:
        """The interface that has no IPv6 address of its own and gets one."""
        first = lab.topology.host(self.host).joined[0]
        return None if first.address6 else first.name

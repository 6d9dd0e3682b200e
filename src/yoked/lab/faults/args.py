"""What a fault takes: each argument reads words of a command line and gives a validated value.

A value is of a narrow type: a number within limits, an address, a name out of a list, or a string
that a pattern or a function accepted. Where a shell reads a value, `Fault.fill` quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from yoked.errors import UsageError
from yoked.lab.topology import hint, parse_rate

if TYPE_CHECKING:
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Host, Interface

_T = TypeVar("_T")


class ArgParser:
    """Takes the words of a fault one by one; what is wrong is told with the usage line."""

    def __init__(self, usage: str, lab: Lab, args: Sequence[str]) -> None:
        self._usage, self.lab = usage, lab
        self._flags = [word for word in args if word.startswith("--")]
        self.left = [word for word in args if not word.startswith("--")]
        self._hosts: list[str] = []

    def wrong(self, what: str, hint: str = "") -> UsageError:
        """An error that ends with how to write it."""
        return UsageError(what, fix=[*([hint] if hint else []), f"yoked lab fault {self._usage}"])

    def take(self, what: str) -> str:
        """The next word. Raises UsageError where there is none."""
        if not self.left:
            raise self.wrong(f"{what} is missing")
        return self.left.pop(0)

    def host(self) -> str:
        """The next word, a host that was not named yet."""
        names = [host.name for host in self.lab.topology.hosts]
        name = self.take("HOST")
        if name not in names:
            raise self.wrong(f"there is no host {name!r}", hint(name, names, "hosts"))
        if name in self._hosts:
            raise self.wrong(f"{name} is named twice: this fault is between two hosts")
        self._hosts.append(name)
        return name

    def flag(self, name: str) -> bool:
        """Whether `--name` was given."""
        if name not in self._flags:
            return False
        self._flags.remove(name)
        return True

    def number(self, text: str, what: str, least: float, most: float) -> float:
        """A number within limits, both allowed. Raises UsageError."""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise self.wrong(f"{what} is {text!r}: it must be from {least:g} to {most:g}")
        return value

    def whole(self, text: str, what: str, least: int, most: int) -> int:
        """A whole number within limits, both allowed. Raises UsageError."""
        value = self.number(text, what, least, most)
        if value != int(value):
            raise self.wrong(f"{what} is {text!r}: it must be a whole number")
        return int(value)

    def end(self) -> None:
        """Raise UsageError when a word is left over."""
        if left := [*self.left, *self._flags]:
            raise self.wrong(f"{' '.join(left)!r} is more than this fault takes")


class Link(NamedTuple):
    """A host's cable, or all its cables. interface: None is all. other: of `cut HOST OTHER`."""

    host: str
    interface: str | None
    other: str | None = None

    def __str__(self) -> str:
        return self.host if self.interface is None else f"{self.interface} of {self.host}"

    def is_on(self, host: Host, interface: Interface) -> bool:
        """Whether this interface is meant."""
        named = self.interface in (None, interface.name)
        return host.name == self.host and named and interface.network is not None


class Ports(NamedTuple):
    """A range of ports, both ends in it."""

    first: int
    last: int


@dataclass(frozen=True)
class Variable:
    """A variable of the environment. value: any text, and no other variable with it."""

    name: str
    value: str = field(compare=False)


@dataclass(frozen=True)
class Arg(Generic[_T]):
    """One argument. usage: as the usage line has it; `{name}` in texts, in lower case.

    tells_apart: two faults of a host are different faults when their values are.
    """

    usage: str
    tells_apart: bool = False

    @property
    def name(self) -> str:
        """What a template of this fault calls its value."""
        found = re.search(r"[A-Za-z]+", self.usage)
        return found[0].lower() if found else ""

    def take(self, words: ArgParser) -> _T:
        """The value, out of the next words. Raises UsageError with the usage line."""
        raise NotImplementedError

    def hosts(self, _value: _T) -> tuple[str, ...]:
        """The hosts that the fault is on by this argument."""
        return ()

    def same(self, one: _T, other: _T) -> bool:
        """Whether two faults with these values may be the same fault."""
        return not self.tells_apart or one == other


@dataclass(frozen=True)
class HostArg(Arg[str]):
    """A host. is_on: false is one that is only spoken of."""

    usage: str = "HOST"
    tells_apart: bool = True
    is_on: bool = True

    def take(self, words: ArgParser) -> str:
        return words.host()

    def hosts(self, value: str) -> tuple[str, ...]:
        return (value,) if self.is_on else ()


@dataclass(frozen=True)
class LinkArg(Arg[Link]):
    """HOST, or HOST:INTERFACE with an interface that leads anywhere. or_pair: or HOST OTHER."""

    usage: str = "HOST[:INTERFACE]"
    or_pair: bool = False

    @property
    def name(self) -> str:
        return "link"

    def take(self, words: ArgParser) -> Link:
        if self.or_pair and len(words.left) == 2:
            return Link(words.host(), None, words.host())
        text = words.left[0] if words.left else ""
        words.left[:1] = [text.partition(":")[0]] if text else []
        host = words.host()
        if ":" not in text:
            return Link(host, None)
        interface = text.partition(":")[2]
        known = [each.name for each in words.lab.topology.host(host).joined]
        if interface not in known:
            what = f"{host} has no interface {interface!r} that leads anywhere"
            raise words.wrong(what, hint(interface, known, "interfaces"))
        return Link(host, interface)

    def hosts(self, value: Link) -> tuple[str, ...]:
        return (value.host,) if value.other is None else (value.host, value.other)

    def same(self, one: Link, other: Link) -> bool:
        """Also when one is of all interfaces and the other of one; two hosts in either order."""
        if set(self.hosts(one)) != set(self.hosts(other)):
            return False
        return None in (one.interface, other.interface) or one.interface == other.interface


@dataclass(frozen=True)
class Number(Arg[float]):
    """A number within limits. suffix: what people write behind it."""

    least: float = 0
    most: float = 0
    suffix: str = ""

    def take(self, words: ArgParser) -> float:
        text = words.take(self.usage).removesuffix(self.suffix)
        return words.number(text, self.usage, self.least, self.most)


@dataclass(frozen=True)
class Whole(Arg[int]):
    """A whole number within limits. default: for `[NAME]`. prefix: what people write before it."""

    least: int = 0
    most: int = 0
    default: int | None = None
    prefix: str = ""

    def take(self, words: ArgParser) -> int:
        if self.default is not None and not words.left:
            return self.default
        what = self.usage.strip("[]")
        text = words.take(what).removeprefix(self.prefix)
        return words.whole(text, what, self.least, self.most)


@dataclass(frozen=True)
class Rate(Arg[float]):
    """Bits per second, in one word or several."""

    usage: str = "RATE"

    def take(self, words: ArgParser) -> float:
        text = " ".join([words.take(self.usage), *words.left])
        words.left.clear()
        try:
            return parse_rate(text)
        except UsageError as problem:
            raise words.wrong(problem.what, "write it as in 20mbit or 1gbit") from problem


@dataclass(frozen=True)
class Flag(Arg[bool]):
    """`[--name]`."""

    def take(self, words: ArgParser) -> bool:
        return words.flag(self.usage.strip("[]"))


@dataclass(frozen=True)
class OpenPorts(Arg[tuple[int, ...]]):
    """Any number of ports."""

    usage: str = "[PORT...]"

    def take(self, words: ArgParser) -> tuple[int, ...]:
        ports = tuple(words.whole(word, "PORT", 1, 65535) for word in words.left)
        words.left.clear()
        return ports


@dataclass(frozen=True)
class PortRange(Arg[Ports]):
    """`FIRST-LAST` in one word, or `FIRST LAST` in two."""

    least: int = 1

    @property
    def name(self) -> str:
        """A template has {ports.first} and {ports.last}."""
        return "ports"

    def take(self, words: ArgParser) -> Ports:
        """The last is no less than the first."""
        if "-" in self.usage:
            text = words.take(self.usage)
            if not (found := re.fullmatch(r"(\d+)-(\d+)", text)):
                raise words.wrong(f"{text!r} is not a range of ports", "write it as in 32768-45000")
            words.left[:0] = found.groups()
        first = words.whole(words.take("FIRST"), "FIRST", self.least, 65535)
        return Ports(first, words.whole(words.take("LAST"), "LAST", first, 65535))


@dataclass(frozen=True, kw_only=True)
class Parsed(Arg[_T]):
    """One word that a function turns into a value; it raises ValueError or KeyError for
    what is none.

    problem: what is then said of the word. example: how to write it. default: the word where
    none is given.
    """

    parse: Callable[[str], _T]
    problem: str = ""
    example: str = ""
    default: str | None = None

    def take(self, words: ArgParser) -> _T:
        what = self.usage.strip("[]")
        has_default = self.default is not None and not words.left
        text = str(self.default) if has_default else words.take(what)
        try:
            return self.parse(text)
        except (ValueError, KeyError):
            raise words.wrong(f"{text!r} {self.problem}", self.example) from None


@dataclass(frozen=True, kw_only=True)
class Optional(Arg[Any]):
    """Another argument, or None where no word is left."""

    of: Arg[Any]

    def take(self, words: ArgParser) -> Any:
        return self.of.take(words) if words.left else None


def matching(pattern: str) -> Callable[[str], str]:
    """A function for `Parsed`: the word, where it is of this pattern."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return parse


def variable(text: str) -> Variable:
    """NAME=VALUE. Raises ValueError."""
    found = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text, re.DOTALL)
    if not found:
        raise ValueError(text)
    return Variable(found[1], found[2])


HOST = HostArg()
OTHER = HostArg("OTHER")
LINK = LinkArg()

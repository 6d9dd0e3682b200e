"""What a fault is: a frozen record that can be brought about, and undone.

A fault is made from the words of a command line (`firewall alpha 8000 --reject`), and made again
from them when it is to be undone, perhaps by another process after a crash. What undoing needs
beyond the words is written down in the fault's record *before* anything is changed.
"""

from __future__ import annotations

import functools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from yoked.errors import LabError, UsageError
from yoked.lab import needs
from yoked.lab.needs import Need
from yoked.lab.topology import hint
from yoked.units import parse_bit_per_s

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

# What becomes of a fault when its host starts anew: it stays by itself, must be brought about
# again, or was gone with the power.
AfterBoot = Literal["stays", "again", "gone"]
_F = TypeVar("_F", bound="Fault")


@functools.cache
def _needs() -> dict[str, Need]:
    return {need.name: need for need in needs.check()}


def lacking(name: str) -> str | None:
    """Why a program that some faults need is not here, and how to get it; None: it is."""
    need = _needs().get(name)
    return None if need is None or need.ok else f"{name} {need.detail}: {need.fix}"


def found(name: str) -> str | None:
    """The path of a program or library that the lab looked for; None: it is not here."""
    need = _needs().get(name)
    return need.detail if need is not None and need.ok else None


def no_rules(lab: Lab) -> str | None:
    """Why the switch of this lab cannot have rules; None: it can."""
    if lab.features.nft:
        return None
    return lacking("nft") or "the kernel has no nftables for bridges: sudo modprobe nf_tables"


@dataclass(frozen=True)
class ActiveFault:
    """A fault in a lab.

    args: the words after the kind. text: what it does, for people. record: what undoing needs.
    started_at: seconds since the epoch. state: "starting" while it is being brought about (and
    for ever when that process died), "healing" when it is undone as soon as its host is up.
    """

    id: str
    kind: str
    args: tuple[str, ...]
    hosts: tuple[str, ...]
    text: str
    record: dict[str, Any]
    started_at: float
    state: Literal["starting", "active", "healing"]

    def __str__(self) -> str:
        waits = " (healed when the host is up)" if self.state == "healing" else ""
        return f"{self.id}  {self.text}{waits}"


@dataclass
class Act:
    """One bringing about or undoing of a fault: where, and what is remembered.

    others: the faults that are active beside this one, oldest first; records: theirs.
    random: seeded by whoever asked. save: writes the record down.
    """

    lab: Lab
    id: str
    record: dict[str, Any] = field(default_factory=dict)
    others: tuple[Fault, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    random: random.Random = field(default_factory=random.Random)
    text: str = ""
    save: Callable[[dict[str, Any]], None] = lambda _record: None

    def remember(self, **facts: Any) -> None:
        """Add to the record, on disk at once: call it before what it would undo is done."""
        self.record.update(facts)
        self.save(self.record)

    def beside(self, host: str) -> list[tuple[Fault, dict[str, Any]]]:
        """The other faults on a host, each with its record."""
        pairs = zip(self.others, self.records, strict=True)
        return [(fault, record) for fault, record in pairs if fault.host == host]

    def say(self, text: str) -> None:
        """Tell what was done, where the fault's words alone do not say it."""
        self.text = text

    def host(self, name: str) -> LabHost:
        """The host, which must be up."""
        host = self.lab.host(name)
        if not host.alive:
            raise LabError(f"{name} is switched off", fix=f"yoked lab heal {name}")
        return host

    def awake(self, name: str) -> LabHost:
        """The host, which must be able to run programs."""
        self._free_of("suspend", name, "is suspended")
        return self.host(name)

    def writable(self, name: str) -> LabHost:
        """The host, which must be able to write files: a full disk would leave them empty."""
        self._free_of("disk-full", name, "has no room on its disk")
        return self.awake(name)

    def _free_of(self, kind: str, name: str, what: str) -> None:
        if any(kind == other.KIND and name in other.hosts for other in self.others):
            raise LabError(f"{name} {what}", fix=f"yoked lab heal {name}")


@dataclass(frozen=True)
class Fault(ABC):
    """One fault on one host; subclasses add what else it needs.

    USAGE: the kind and its words, as in a command line.
    NEEDS_HOST: whether it can only be brought about while its hosts are up.
    WRITES_FILES: of its hosts, so it can only be undone then, too, and otherwise waits for them.
    LASTS: false is done and over. BOOTS: its end is a new start of its hosts.
    WHOLE_NETWORK: it needs something of all hosts.
    """

    KIND: ClassVar[str]
    SUMMARY: ClassVar[str]
    USAGE: ClassVar[str]
    AFTER_BOOT: ClassVar[AfterBoot] = "stays"
    NEEDS_HOST: ClassVar[bool] = True
    WRITES_FILES: ClassVar[bool] = False
    LASTS: ClassVar[bool] = True
    BOOTS: ClassVar[bool] = False
    WHOLE_NETWORK: ClassVar[bool] = False

    host: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From the words after the kind. Raises UsageError with the usage line."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host()))

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """Why this machine cannot do it, and what to change; None: it can."""
        return None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it is on."""
        return (self.host,)

    def same_as(self, other: Fault) -> bool:
        """Whether it would be the same fault twice."""
        return self.KIND == other.KIND and self.hosts == other.hosts

    @property
    @abstractmethod
    def text(self) -> str:
        """What it does, for people: one line."""

    @abstractmethod
    def apply(self, act: Act) -> None:
        """Bring it about. Doing so twice changes nothing more."""

    @abstractmethod
    def undo(self, act: Act) -> None:
        """Make it as it was, also when it was only half brought about, or is gone already."""


@dataclass(frozen=True)
class PairFault(Fault):
    """A fault between two hosts."""

    NEEDS_HOST = False

    other: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From `A B`."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.another_host()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Both."""
        return (self.host, self.other)


class Words:
    """Takes the words of a fault one by one; what is wrong is told with the usage line."""

    def __init__(self, usage: str, lab: Lab, args: Sequence[str]) -> None:
        self._usage, self._lab = usage, lab
        self._flags = [word for word in args if word.startswith("--")]
        self._words = [word for word in args if not word.startswith("--")]
        self._hosts: list[str] = []

    def wrong(self, what: str, hint: str = "") -> UsageError:
        """An error that ends with how to write it."""
        return UsageError(what, fix=[*([hint] if hint else []), f"yoked lab fault {self._usage}"])

    def host(self) -> str:
        """The next word, a host's name."""
        names = [host.name for host in self._lab.topology.hosts]
        name = self.take("HOST")
        if name not in names:
            raise self.wrong(f"there is no host {name!r}", hint(name, names, "hosts"))
        self._hosts.append(name)
        return name

    def link(self) -> tuple[str, str | None]:
        """The next word: HOST, or HOST:INTERFACE; an interface that leads anywhere."""
        if not self._words or ":" not in self._words[0]:
            return self.host(), None
        name, _, interface = self._words.pop(0).partition(":")
        self._words.insert(0, name)
        host = self._lab.topology.host(self.host())
        known = [each.name for each in host.joined]
        if interface not in known:
            what = f"{name} has no interface {interface!r} that leads anywhere"
            raise self.wrong(what, hint(interface, known, "interfaces"))
        return name, interface

    def another_host(self) -> str:
        """The next word, a host that was not named yet."""
        name = self.host()
        if name in self._hosts[:-1]:
            raise self.wrong(f"{name} is named twice: this fault is between two hosts")
        return name

    def take(self, what: str) -> str:
        """The next word. Raises UsageError where there is none."""
        if not self._words:
            raise self.wrong(f"{what} is missing")
        return self._words.pop(0)

    def optional(self) -> str | None:
        """The next word, if there is one."""
        return self._words.pop(0) if self._words else None

    def rest(self) -> list[str]:
        """All words that are left."""
        words, self._words = self._words, []
        return words

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

    def optional_whole(self, what: str, least: int, most: int, default: int) -> int:
        """The next word as a whole number within limits, if there is one. Raises UsageError."""
        text = self.optional()
        return self.whole(text, what, least, most) if text else default

    def rate_bit_per_s(self, text: str) -> float:
        """`20mbit`, as tc writes it, or `20 Mbit/s`. Raises UsageError."""
        written = f"{text}/s" if re.search(r"bit\s*$", text, re.IGNORECASE) else text
        try:
            return parse_bit_per_s(written)
        except UsageError as problem:
            raise self.wrong(problem.what, "write it as in 20mbit or 1gbit") from problem

    def done(self, fault: _F) -> _F:
        """The fault, when no word is left over."""
        left = [*self._words, *self._flags]
        if left:
            raise self.wrong(f"{' '.join(left)!r} is more than this fault takes")
        return fault

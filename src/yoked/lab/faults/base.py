"""What a fault is: a kind, which is an entry of a list, and the values that somebody gave it.

To add a kind: an entry in the list of its family (`CABLES` in links.py and so on), of arguments
(args.py) and effects (above the list). Only what no effect does yet needs a new one.

A fault is made from the words of a command line (`firewall alpha 8000 --reject`), and made again
from them when it is to be undone, perhaps by another process after a crash. What undoing needs
beyond the words is written down in the fault's record *before* anything is changed.
"""

from __future__ import annotations

import random
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from yoked.errors import LabError
from yoked.lab import needs
from yoked.lab.faults.args import Arg, ArgParser, Link
from yoked.lab.needs import Need

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Interface

_T = TypeVar("_T")
_E = TypeVar("_E", bound="Effect")
# What becomes of a fault when its host starts anew: it stays by itself, must be brought about
# again, or was gone with the power.
AfterBoot = Literal["stays", "again", "gone"]


class Effect(ABC):
    """One way to break something, and to mend it. A fault is one or several, with parameters.

    NEEDS_HOST: it can only be brought about while the fault's hosts are up.
    WRITES_FILES: of its hosts, so it can only be undone then, too, and otherwise waits for them.
    BOOTS: its end is a new start of its hosts. IS_OVER: once brought about, it leaves nothing.
    NO_PROGRAMS, NO_FILES: why its hosts run no programs meanwhile, or cannot write files.
    """

    AFTER_BOOT: ClassVar[AfterBoot] = "stays"
    NEEDS_HOST: ClassVar[bool] = True
    WRITES_FILES: ClassVar[bool] = False
    BOOTS: ClassVar[bool] = False
    IS_OVER: ClassVar[bool] = False
    NO_PROGRAMS: ClassVar[str | None] = None
    NO_FILES: ClassVar[str | None] = None

    @property
    def whole_network(self) -> bool:
        """Whether it needs something of all hosts."""
        return False

    def unsupported(self, _lab: Lab) -> str | None:
        """Why this machine cannot do it, and what to change; None: it can."""
        return None

    @abstractmethod
    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Bring it about. Doing so twice changes nothing more."""

    @abstractmethod
    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Make it as it was, also when it was only half brought about, or is gone already."""


class InMemory(Effect):
    """One that ends with the power of the fault's host: a host that is down has none to undo."""

    AFTER_BOOT: ClassVar[AfterBoot] = "again"


class _Quoting(string.Formatter):
    """Fills a template with values that a program will read, each quoted for it."""

    def __init__(self, quote: Callable[[str], str]) -> None:
        self._quote = quote

    def format_field(self, value: Any, format_spec: str) -> str:
        """Attributes (`{ports.first}`) are looked up before."""
        return self._quote(format(value, format_spec))


@dataclass(frozen=True)
class Kind:
    """An entry of a family's list.

    text: what it does, for people, with the values as `{name}`; or a function.
    effects: in the order in which they are brought about.
    """

    name: str
    args: tuple[Arg[Any], ...]
    summary: str
    text: str | Callable[[Fault], str]
    effects: tuple[Effect, ...]

    @property
    def usage(self) -> str:
        """The kind and its words, as in a command line."""
        return " ".join([self.name, *(arg.usage for arg in self.args)])

    @property
    def after_boot(self) -> AfterBoot:
        """What is gone with the power must be brought about again, and the rest does no harm."""
        found = [effect.AFTER_BOOT for effect in self.effects]
        return "again" if "again" in found else found[0]

    @property
    def whole_network(self) -> bool:
        """Whether it needs something of all hosts."""
        return any(effect.whole_network for effect in self.effects)

    def unsupported(self, lab: Lab) -> str | None:
        """Why this machine cannot do it, and what to change; None: it can."""
        return next((why for each in self.effects if (why := each.unsupported(lab))), None)

    def parse(self, lab: Lab, args: Sequence[str]) -> Fault:
        """From the words after the kind. Raises UsageError with the usage line."""
        words = ArgParser(self.usage, lab, args)
        values = tuple(arg.take(words) for arg in self.args)
        words.end()
        return Fault(self, values)


@dataclass(frozen=True)
class Fault:
    """A kind with values, in the order of its arguments."""

    kind: Kind
    values: tuple[Any, ...]

    def __getitem__(self, arg: Arg[_T]) -> _T:
        value: _T = self.values[self.kind.args.index(arg)]
        return value

    @property
    def host(self) -> str:
        """The one that it is on, or the first of two."""
        return self.hosts[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it is on."""
        pairs = zip(self.kind.args, self.values, strict=True)
        return tuple(host for arg, value in pairs for host in arg.hosts(value))

    @property
    def text(self) -> str:
        """What it does, for people: one line."""
        return self.fill(self.kind.text)

    def fill(
        self, template: str | Callable[[Fault], str], *, quote: Callable[[str], str] = str
    ) -> str:
        """A template with this fault's values; quote: for who reads the result."""
        if not isinstance(template, str):
            return template(self)
        named = {arg.name: value for arg, value in zip(self.kind.args, self.values, strict=True)}
        return _Quoting(quote).format(template, **{"host": self.host, **named})

    def same_as(self, other: Fault) -> bool:
        """Whether it would be the same fault twice."""
        values = zip(self.kind.args, self.values, other.values, strict=True)
        return self.kind is other.kind and all(arg.same(one, two) for arg, one, two in values)

    def link(self) -> Link:
        """The link that it is of; its kind takes one."""
        return next(each for each in self.values if isinstance(each, Link))

    def interfaces(self, lab: Lab) -> list[Interface]:
        """Those of its link."""
        host, link = lab.topology.host(self.host), self.link()
        return [each for each in host.interfaces if link.is_on(host, each)]

    def effects(self, kind: type[_E]) -> list[_E]:
        """Its effects of this type."""
        return [each for each in self.kind.effects if isinstance(each, kind)]

    def has(self, name: Literal["NEEDS_HOST", "WRITES_FILES", "BOOTS", "IS_OVER"]) -> bool:
        """Whether this is true of any of its effects."""
        return any(getattr(each, name) for each in self.kind.effects)

    def apply(self, context: FaultContext) -> None:
        """Bring it about. Doing so twice changes nothing more."""
        for effect in self.kind.effects:
            effect.apply(self, context)

    def undo(self, context: FaultContext) -> None:
        """Make it as it was, also when it was only half brought about, or is gone already."""
        for effect in reversed(self.kind.effects):
            if not isinstance(effect, InMemory) or context.lab.host(self.host).alive:
                effect.undo(self, context)


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
class FaultContext:
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
        self._require_none("NO_PROGRAMS", name)
        return self.host(name)

    def writable(self, name: str) -> LabHost:
        """The host, which must be able to write files: a full disk would leave them empty."""
        self._require_none("NO_FILES", name)
        return self.awake(name)

    def _require_none(self, hindrance: Literal["NO_PROGRAMS", "NO_FILES"], name: str) -> None:
        for other in self.others:
            for effect in other.kind.effects:
                if name in other.hosts and (why := getattr(effect, hindrance)):
                    raise LabError(f"{name} {why}", fix=f"yoked lab heal {name}")


def lacking(name: str) -> str | None:
    """Why a program that some faults need is not here, and how to get it; None: it is."""
    need = _need(name)
    return None if need.ok else f"{name} {need.detail}: {need.fix}"


def found(name: str) -> str | None:
    """The path of a program or library that the lab looked for; None: it is not here."""
    need = _need(name)
    return need.detail if need.ok else None


def _need(name: str) -> Need:
    return next(need for need in needs.check() if need.name == name)


def no_rules(lab: Lab) -> str | None:
    """Why the switch of this lab cannot have rules; None: it can."""
    if lab.features.nft:
        return None
    return lacking("nft") or "the kernel has no nftables for bridges: sudo modprobe nf_tables"

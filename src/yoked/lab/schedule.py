"""Timed faults: a file says what breaks when, a plan lists it, a runner carries it out.

    seed = 7

    [[fault]]
    after = "3 s"
    do = "cut alpha"
    for = "10 s"

    [[fault]]
    at_step = 20
    run = "alpha:runs/x"
    do = "kill beta"

    [random]
    kinds = ["cut", "slow-link HOST 20mbit", "one-way HOST OTHER"]
    every = "20 s"
    for = "5 s"
    count = 10

All of this is pure: the same file, seed and hosts give the same plan. `timed` carries it out.
"""

from __future__ import annotations

import difflib
import random
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from yoked.errors import UsageError
from yoked.units import format_duration, parse_duration_s

_T = TypeVar("_T")

_FILE_KEYS = ("seed", "fault", "random")
_FAULT_KEYS = ("after", "at_step", "run", "do", "for")
_RANDOM_KEYS = ("kinds", "hosts", "every", "for", "count")


@dataclass(frozen=True)
class RunPlace:
    """Where a run's folder lies. host: None is this machine."""

    host: str | None
    folder: str

    @classmethod
    def parse(cls, text: str) -> RunPlace:
        """`alpha:runs/x` is on a host, `runs/x` on this machine."""
        host, colon, folder = text.partition(":")
        return cls(host, folder) if colon and host and "/" not in host else cls(None, text)

    def __str__(self) -> str:
        return self.folder if self.host is None else f"{self.host}:{self.folder}"


@dataclass(frozen=True)
class PlannedFault:
    """One fault and its moment: after_s seconds, or when a run has done at_step steps.

    do: the kind and its arguments. for_s: healed after so long; None: it stays.
    """

    do: tuple[str, ...]
    after_s: float | None = None
    at_step: int | None = None
    run: RunPlace | None = None
    for_s: float | None = None

    @property
    def when(self) -> str:
        """The moment, for people."""
        if self.after_s is not None:
            return f"after {format_duration(self.after_s)}"
        return f"at step {self.at_step} of {self.run}"

    def __str__(self) -> str:
        stays = "" if self.for_s is None else f", for {format_duration(self.for_s)}"
        return f"{self.when}: {shlex.join(self.do)}{stays}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            "do": shlex.join(self.do),
            "after_s": self.after_s,
            "at_step": self.at_step,
            "run": None if self.run is None else str(self.run),
            "for_s": self.for_s,
        }


@dataclass(frozen=True)
class Plan:
    """What will be done, timed faults in the order of their moments. seed: of what was drawn."""

    faults: tuple[PlannedFault, ...]
    seed: int


@dataclass(frozen=True)
class RandomFaults:
    """What random faults are drawn from. hosts: () is all of the lab.

    kinds: fault lines in which HOST, and OTHER where two are needed, stand for drawn hosts.
    every_s: mean time between two; the real one is between half and one and a half of it.
    """

    kinds: tuple[tuple[str, ...], ...]
    hosts: tuple[str, ...]
    every_s: float
    for_s: float
    count: int


@dataclass(frozen=True)
class FaultFile:
    """A fault file as written."""

    path: str
    seed: int | None
    faults: tuple[PlannedFault, ...]
    random: RandomFaults | None

    def plan(self, *, seed: int, hosts: Sequence[str]) -> Plan:
        """Everything that will be done. Pure: decided by the file, the seed and the hosts."""
        drawn = [] if self.random is None else _draw(self.random, seed, hosts, self.path)
        timed = [fault for fault in (*self.faults, *drawn) if fault.after_s is not None]
        by_step = [fault for fault in self.faults if fault.after_s is None]
        timed.sort(key=lambda fault: fault.after_s or 0.0)
        return Plan((*timed, *by_step), seed)


def read_file(path: Path) -> FaultFile:
    """Read a fault file. Raises UsageError with the file, the key and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"the fault file {path} cannot be read: {problem}", fix="name a TOML file"
        ) from problem
    return parse(text, str(path))


def parse(text: str, path: str) -> FaultFile:
    """The content of a fault file. path: only for errors. Raises UsageError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(
            f"{path} is not TOML: {problem}", fix="mend that line; strings need quotes"
        ) from problem
    top = _Table(path, "", data, _FILE_KEYS)
    faults = [
        _fault(_Table(path, f"[[fault]] {number}: ", entry, _FAULT_KEYS))
        for number, entry in enumerate(top.tables("fault"), start=1)
    ]
    drawn = None
    if "random" in data:
        drawn = _random(_Table(path, "[random] ", data["random"], _RANDOM_KEYS))
    if not faults and drawn is None:
        raise UsageError(f"{path} names no fault", fix="add a [[fault]] or a [random] table")
    return FaultFile(path, top.integer("seed", None, least=0), tuple(faults), drawn)


class _Table:
    """A table of the file with its place in it, for errors that say where and what."""

    def __init__(self, path: str, place: str, data: Any, keys: Sequence[str]) -> None:
        self._path, self._place = path, place
        if not isinstance(data, Mapping):
            raise self.wrong("", "is not a table", "write its keys below a [heading]")
        self.data = data
        for key in data:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(keys)}"
                raise self.wrong(key, "is no key of a fault file", hint)

    def wrong(self, key: str, what: str, fix: str) -> UsageError:
        return UsageError(f"{self._path}: {self._place}{key} {what}", fix=fix)

    def tables(self, key: str) -> list[Any]:
        entries = self.data.get(key, [])
        if not isinstance(entries, list):
            raise self.wrong(key, "is one table", f"write [[{key}]] with two brackets")
        return entries

    def text(self, key: str) -> str | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"is {value!r}", f'write text in quotes: {key} = "..."')
        return value

    def duration_s(self, key: str) -> float | None:
        if self.data.get(key) is None:
            return None
        value = self.text(key)
        assert value is not None
        try:
            return parse_duration_s(value)
        except UsageError as problem:
            raise self.wrong(key, f"= {value!r} is not a duration", problem.fix[0]) from problem

    def integer(self, key: str, default: int | None, *, least: int) -> int | None:
        value = self.data.get(key, default)
        if value is None:
            return None
        # In Python true is an integer; in a fault file it is a mistake.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"is {value!r}", f"write a whole number from {least} on")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.data.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
            raise self.wrong(key, f"is {values!r}", f'write a list: {key} = ["...", "..."]')
        return tuple(values)

    def words(self, key: str, line: str) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(line))
        except ValueError as problem:
            raise self.wrong(key, f"= {line!r}: {problem}", "close the quotes") from problem


def _fault(table: _Table) -> PlannedFault:
    line = table.text("do")
    if line is None:
        raise table.wrong("do", "is missing", 'say what to do, as in do = "cut alpha"')
    after_s, at_step = table.duration_s("after"), table.integer("at_step", None, least=1)
    if (after_s is None) == (at_step is None):
        raise table.wrong(
            "after, at_step:", "one of both must say when", 'after = "3 s", or at_step and run'
        )
    run = table.text("run")
    if (run is None) != (at_step is None):
        raise table.wrong(
            "at_step, run:", "belong together", 'at_step = 20 and run = "alpha:runs/x"'
        )
    return PlannedFault(
        do=table.words("do", line),
        after_s=after_s,
        at_step=at_step,
        run=None if run is None else RunPlace.parse(run),
        for_s=table.duration_s("for"),
    )


def _random(table: _Table) -> RandomFaults:
    kinds = [table.words("kinds", line) for line in table.texts("kinds")]
    if not kinds:
        raise table.wrong("kinds", "is missing", 'name some: kinds = ["cut", "lossy HOST 5"]')
    every_s, for_s = table.duration_s("every"), table.duration_s("for")
    for key, value in (("every", every_s), ("for", for_s)):
        if not value:
            raise table.wrong(key, "is missing or zero", f'say how long: {key} = "20 s"')
    assert every_s is not None
    assert for_s is not None
    count = table.integer("count", 10, least=1)
    assert count is not None
    # A bare kind is meant for one host: nearly all take it first.
    lines = tuple(words if len(words) > 1 else (*words, "HOST") for words in kinds)
    return RandomFaults(lines, table.texts("hosts"), every_s, for_s, count)


def _draw(source: RandomFaults, seed: int, hosts: Sequence[str], path: str) -> list[PlannedFault]:
    """Random faults. No host has two at once: the second would hide what the first does."""
    names = list(source.hosts or hosts)
    for name in names:
        if name not in hosts:
            raise UsageError(
                f"{path}: [random] hosts names {name!r}, which this lab has not",
                fix=f"hosts of the lab: {', '.join(hosts)}",
            )
    dice = random.Random(seed)
    free_from_s = dict.fromkeys(names, 0.0)
    faults: list[PlannedFault] = []
    at_s = 0.0
    for _ in range(source.count):
        line = _pick(dice, source.kinds)
        wanted = [word for word in ("HOST", "OTHER") if word in line]
        if len(wanted) > len(names):
            raise UsageError(
                f"{path}: [random] kinds: {shlex.join(line)!r} needs two hosts",
                fix="name two hosts or more in hosts",
            )
        at_s = round(at_s + source.every_s * (0.5 + dice.random()), 2)
        if wanted:
            at_s = max(at_s, sorted(free_from_s.values())[len(wanted) - 1])
        drawn: dict[str, str] = {}
        for word in wanted:
            free = [n for n in names if free_from_s[n] <= at_s and n not in drawn.values()]
            drawn[word] = _pick(dice, free)
        free_from_s.update(dict.fromkeys(drawn.values(), at_s + source.for_s))
        do = tuple(drawn.get(word, word) for word in line)
        faults.append(PlannedFault(do=do, after_s=at_s, for_s=source.for_s))
    return faults


def _pick(dice: random.Random, things: Sequence[_T]) -> _T:
    # Python promises only `random()` to give the same numbers in every version.
    return things[int(dice.random() * len(things))]

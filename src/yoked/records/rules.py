"""Rules for foreign values: what a host, or a saved report, may say where it becomes a record.

A rule gives the value back, or raises OddError. Values end in lines that a person pastes into a
shell, so addresses, names, versions and paths have no character beside those that such a thing has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

from yoked.core.names import DATA_NAME, RUN_NAME
from yoked.core.patterns import pattern_flaw
from yoked.core.schema import MOST

# A rule gets the value, where it lies, and the list to which it adds what it had to leave out.
Rule = Callable[[Any, str, list[str]], Any]
# The year 9999 ends later in every time zone; datetime knows none after it.
_LAST_S = 253_402_200_000.0
_LONGEST_TEXT = 200_000
_LONGEST_LINE = 4096
_LONGEST_LABEL = 200
# C0, DEL, C1, and what ends a line beside them.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@-]{0,14}")


class OddError(ValueError):
    """A value that is not what belongs there."""


def _leaf(act: Callable[[Any], Any]) -> Rule:
    def rule(value: Any, path: str, odd: list[str]) -> Any:
        del odd
        try:
            return act(value)
        except (ValueError, TypeError) as problem:
            raise OddError(path) from problem

    return rule


def _require(holds: object) -> None:
    if not holds:
        raise ValueError


def _of_pattern(pattern: str) -> Rule:
    known = re.compile(pattern)

    def read(value: Any) -> str:
        _require(isinstance(value, str) and known.fullmatch(value))
        return str(value)

    return _leaf(read)


def _read_address(value: Any) -> str:
    _require(isinstance(value, str))
    plain, percent, scope = value.partition("%")
    # An address of IPv4 has no scope.
    found = ip_address(plain)
    _require(not percent or (found.version == 6 and INTERFACE.fullmatch(scope)))
    return str(value)


def _read_text(value: Any) -> str:
    _require(isinstance(value, str) and len(value) <= _LONGEST_TEXT)
    return str(value)


def _read_line(value: Any) -> str:
    _require(isinstance(value, str) and len(value) <= _LONGEST_LINE and not CONTROL.search(value))
    return str(value)


def _read_path(value: Any) -> str:
    # Never an option of whatever it is given to.
    _require(_read_line(value).startswith(("/", "~/")))
    return str(value)


def _read_pattern(value: Any) -> str:
    _require(pattern_flaw(_read_line(value)) is None)
    return str(value)


def _read_label(value: Any) -> str:
    _require(isinstance(value, str))
    return CONTROL.sub(" ", value)[:_LONGEST_LABEL]


def _whole(least: int, most: int) -> Rule:
    def read(value: Any) -> int:
        # In Python True is a number too.
        _require(type(value) is int and least <= value <= most)
        return int(value)

    return _leaf(read)


def _read_number(value: Any) -> float:
    # What is no number is not below anything.
    _require(type(value) in (int, float) and abs(value) <= MOST)
    # As it came: 1 stays 1.
    return value  # type: ignore[no-any-return]


def _read_moment(value: Any) -> float:
    found = _read_number(value)
    _require(0.0 <= found < _LAST_S)
    return found


def _read_flag(value: Any) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


# For people's eyes alone: a text may have several lines, a line has no control character, and a
# label is made one.
text = _leaf(_read_text)
line = _leaf(_read_line)
label = _leaf(_read_label)
# Words of a few letters: kinds, states, names of services and units.
word = _of_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
# Of errno.h.
symbol = _of_pattern(r"E[A-Z0-9]{1,31}")
address = _leaf(_read_address)
# IFNAMSIZ - 1 of Linux' include/uapi/linux/if.h; a label has a colon, a VLAN a dot.
interface = _of_pattern(INTERFACE.pattern)
# As in hosts(5), with the underscore that many have.
host_name = _of_pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
# With the backslash and the @ of a directory's users.
user = _of_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,254}\$?")
# Of a package or a kernel; what pip takes, and + for a build.
version = _of_pattern(r"[A-Za-z0-9][A-Za-z0-9.+!_~-]{0,127}")
# A Python's for pip; that of a C library, or of macOS, with nothing where there is none.
python_minor = _of_pattern(r"3\.[0-9]{1,2}")
libc_version = _of_pattern(r"([0-9]{1,3}(\.[0-9]{1,3}){1,3})?")
mac_version = _of_pattern(r"([0-9]{1,3}(\.[0-9]{1,3}){0,3})?")
libc = _of_pattern(r"[A-Za-z0-9]{0,16}")
# Of a time, as TZ has it: tzset(3).
zone = _of_pattern(r"[A-Za-z0-9_+:,./<>-]{1,64}")
variable = _of_pattern(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
# Of sysctl(8), with slashes: a dot may be part of an interface's name.
setting = _of_pattern(r"net/[A-Za-z0-9_./:@-]{1,120}")
mac = _of_pattern(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){0,31}")
# Of a run, and of one start of it; a job that is only being made has none yet.
run_name = _of_pattern(RUN_NAME.pattern)
data_name = _of_pattern(DATA_NAME.pattern)
digest = _of_pattern(r"[0-9a-f]{64}")
launch_id = _of_pattern(r"[A-Za-z0-9_-]{0,64}")
path = _leaf(_read_path)
# Of Python's own library, by its name below that.
library_file = _of_pattern(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,127}")
pattern = _leaf(_read_pattern)
# As a person names an interpreter: an option it is not, a blank it may have.
program = _of_pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029-][^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
# What ssh takes for a host: no option, and nothing that a shell would take for its own, for it
# stands in many lines to paste.
SSH_NAME = re.compile(r"[\w.@:%/+=,][\w.@:%/+=,-]*")
ssh_name = _of_pattern(SSH_NAME.pattern)
pid = _whole(1, 2**31 - 1)
port = _whole(1, 65_535)
port_text = _of_pattern(r"[0-9]{1,5}")
prefix = _whole(0, 128)
count = _whole(0, MOST)
whole = _whole(-MOST, MOST)
number = _leaf(_read_number)
# Seconds since 1970, of a date that can be shown.
moment = _leaf(_read_moment)
flag = _leaf(_read_flag)
nothing = _leaf(lambda value: _require(value is None))


def one_of(*words: str) -> Rule:
    """One of a few words."""
    return _of_pattern("|".join(map(re.escape, words)))


def optional(rule: Rule) -> Rule:
    """A value, or None where it could not be told."""

    def read(value: Any, path: str, odd: list[str]) -> Any:
        return None if value is None else rule(value, path, odd)

    return read


def each(rule: Rule) -> Rule:
    """A list; items that are odd are left out."""

    def read(value: Any, path: str, odd: list[str]) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise OddError(path)
        found = []
        for item in value:
            try:
                found.append(rule(item, path, odd))
            except OddError as problem:
                odd.append(str(problem))
        return found

    return read


def all_of(*rules: Rule) -> Rule:
    """A list of so many, each by its own rule; of one rule: any number. Odd as a whole."""

    def read(value: Any, path: str, odd: list[str]) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise OddError(path)
        own = rules * len(value) if len(rules) == 1 else rules
        if len(own) != len(value):
            raise OddError(path)
        return [rule(item, path, odd) for rule, item in zip(own, value, strict=True)]

    return read


def named(key: Rule, rule: Rule, *, strict: bool = False) -> Rule:
    """A mapping by names; entries whose name or content is odd are left out, if not strict."""

    def read(value: Any, path: str, odd: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise OddError(path)
        found = {}
        for name, item in value.items():
            try:
                known = key(name, f"{path}.NAME", odd)
                found[known] = rule(item, f"{path}.{known}", odd)
            except OddError as problem:
                if strict:
                    raise
                odd.append(str(problem))
        return found

    return read


def any_of(*rules: Rule) -> Rule:
    """What the first rule that the value follows makes of it."""

    def read(value: Any, path: str, odd: list[str]) -> Any:
        for rule in rules:
            with contextlib.suppress(OddError):
                return rule(value, path, odd)
        raise OddError(path)

    return read


def complete(rules: Mapping[str, Rule], *, more: bool = False) -> Rule:
    """A mapping of these fields, of which none may be missing or odd. more: as in `fields`."""
    return fields(rules, needed=tuple(rules), more=more)


def fields(
    rules: Mapping[str, Rule],
    *,
    needed: tuple[str, ...] = (),
    strict: tuple[str, ...] = (),
    more: bool = False,
) -> Rule:
    """A mapping of these fields. One that is odd is None.

    needed: those that have to be there. strict: those for which None has a meaning of its own. If
    one of these is odd, all is. more: whether other fields stay, as they are.
    """

    def read(value: Any, path: str, odd: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise OddError(path)
        found = {name: each for name, each in value.items() if more and name not in rules}
        for name, rule in rules.items():
            where = f"{path}.{name}"
            if name not in value:
                if name in needed:
                    raise OddError(where)
                continue
            try:
                none = value[name] is None and name not in needed
                found[name] = None if none else rule(value[name], where, odd)
            except OddError as problem:
                if name in needed or name in strict:
                    raise
                odd.append(str(problem))
                found[name] = None
        return found

    return read


def reread(rule: Rule, name: str, content: Any, odd: list[str], instead: Any) -> Any:
    """A part of a saved report by its rule. instead: what it is where nothing can be made of it."""
    try:
        return rule(content, name, odd)
    except OddError as problem:
        odd.append(str(problem))
        return instead

"""An examination as JSON, and back: checks give the same findings of either.

Keys are the fields of `yoked.records.examination`; `version` is that of this layout.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from yoked.errors import YokedError
from yoked.records import answers
from yoked.records.answers import reread
from yoked.records.examination import Dial, Examination, HostSeen
from yoked.records.words import MOST, OddError, optional, ssh_name, user

VERSION = 1


def to_json(examination: Examination) -> dict[str, Any]:
    """An examination as plain data for `json.dumps`."""
    return {"version": VERSION, **_plain(dataclasses.asdict(examination))}


def from_json(content: Any, *, where: str = "the examination") -> Examination:
    """The examination in what `json.loads` gave. where: the file, for the error.

    Fields that this version does not know are passed over, and those that are missing have their
    defaults. Raises YokedError for what is no examination, or one of another version.
    """
    fix = "yoked doctor --bundle FILE    writes one"
    version = content.get("version") if isinstance(content, Mapping) else None
    if version != VERSION:
        raise YokedError(
            f"{where} has version {version!r}; this yoked reads version {VERSION}", fix=fix
        )
    try:
        examination: Examination = _build(Examination, content, "")
        return _read_words(examination)
    except (TypeError, OverflowError, OddError) as problem:
        raise YokedError(f"{where} is damaged: {problem}", fix=fix) from problem


def _read_words(seen: Examination) -> Examination:
    """The same with what hosts have said as a look would have taken it: others may have written it.

    Raises OddError for a host's name that is none.
    """
    odd: dict[str, list[str]] = {host.name: [] for host in seen.hosts}
    dials = tuple(each for each in seen.dials if _is_dial(each, odd))
    return dataclasses.replace(
        seen,
        hosts=tuple(_read_host(host, odd[host.name]) for host in seen.hosts),
        dials=dials,
        need=dataclasses.replace(
            seen.need, versions=reread(answers.VERSIONS, "need", seen.need.versions, [], {})
        ),
        controller=reread(answers.CONTROLLER, "controller", seen.controller, [], {}),
    )


def _is_dial(dial: Dial, odd: Mapping[str, list[str]]) -> bool:
    """Whether a dial is one between these hosts, in words that can be."""
    if not {dial.source, dial.target} <= odd.keys():
        return False
    places: list[str] = []
    found = reread(answers.DIALLED, "dial", dataclasses.asdict(dial), places, None)
    odd[dial.source].extend(places)
    return found is not None and not places


def _read_host(host: HostSeen, odd: list[str]) -> HostSeen:
    odd += host.odd
    failure = host.failure
    return dataclasses.replace(
        host,
        name=ssh_name(host.name, "name", odd),
        wanted=reread(answers.WANTED, "wanted", host.wanted, odd, {}),
        # Lines to paste are made anew of what was seen, and not taken from a file.
        failure=failure
        and dataclasses.replace(
            failure, fix=(), user=reread(optional(user), "failure.user", failure.user, odd, None)
        ),
        facts=reread(answers.FACTS, "facts", host.facts, odd, {}),
        interfaces=tuple(reread(answers.INTERFACES, "interfaces", host.interfaces, odd, ())),
        health=reread(answers.HEALTH, "health", host.health, odd, {}),
        torch=host.torch and reread(answers.TORCH, "torch", host.torch, odd, None),
        odd=tuple(dict.fromkeys(odd)),
    )


def _plain(value: Any) -> Any:
    """Lists for tuples, and texts for keys: what JSON makes of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _build(kind: Any, value: Any, path: str) -> Any:
    """A value of one of the records' types. Raises TypeError that names what is none."""
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _build_record(kind, value, path)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        known = next(each for each in inner if each is not type(None))
        return None if value is None else _build(known, value, path)
    if origin is tuple:
        _require(isinstance(value, (list, tuple)), path, "a list", value)
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        _require(len(kinds) == len(value), path, f"a list of {len(kinds)}", value)
        return tuple(
            _build(each, item, f"{path}[{number}]")
            for number, (each, item) in enumerate(zip(kinds, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), path, "an object", value)
        return {key: _build(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    return _build_plain(kind, origin, inner, value, path)


def _build_plain(kind: Any, origin: Any, inner: tuple[Any, ...], value: Any, path: str) -> Any:
    """A number, a text, a truth value, or one of a few words."""
    if origin is typing.Literal:
        _require(value in inner, path, f"one of {', '.join(map(str, inner))}", value)
        return value
    if kind is float:
        _require(
            type(value) in (int, float) and abs(value) <= MOST,
            path, "a number", value,
        )  # fmt: skip
        return float(value)
    if kind is int:
        _require(type(value) is int and abs(value) <= MOST, path, "a whole number", value)
    words = {int: "a whole number", str: "a text", bool: "true or false"}
    _require(type(value) is kind, path, words[kind], value)
    return value


def _build_record(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path, "an object", value)
    hints = _hints(kind)
    needed = {
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    if missing := sorted(f"{path}.{name}".lstrip(".") for name in needed if name not in value):
        raise TypeError(f"{', '.join(missing)} missing")
    known = {name: value[name] for name in hints if name in value}
    return kind(**{n: _build(hints[n], v, f"{path}.{n}") for n, v in known.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _require(holds: bool, path: str, wanted: str, value: Any) -> None:
    if not holds:
        raise TypeError(f"{path.lstrip('.') or 'it'} is {value!r:.60}, not {wanted}")

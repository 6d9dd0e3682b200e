"""Records from JSON: dataclasses, by the types of their fields; what does not fit is named."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from yoked.records.words import MOST


def build(kind: Any, value: Any, path: str = "") -> Any:
    """A value of one of the records' types, from what `json.loads` gave.

    Keys that a record does not have are passed over; a missing field has its default. Raises
    TypeError that names the first place that does not fit. path: where the value lies.
    """
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _build_record(kind, value, path)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        # The records have no union but `X | None`.
        known = next(each for each in inner if each is not type(None))
        return None if value is None else build(known, value, path)
    if origin is tuple:
        _require(isinstance(value, (list, tuple)), path, "a list", value)
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        _require(len(kinds) == len(value), path, f"a list of {len(kinds)}", value)
        return tuple(
            build(each, item, f"{path}[{number}]")
            for number, (each, item) in enumerate(zip(kinds, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), path, "an object", value)
        return {key: build(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    if origin is typing.Literal:
        _require(value in inner, path, f"one of {', '.join(map(str, inner))}", value)
        return value
    return _build_plain(kind, value, path)


def _build_plain(kind: Any, value: Any, path: str) -> Any:
    """A number, a text or a truth value."""
    # `type`, because True is an int too. JSON may have 1 for 1.0, and numbers of any length.
    if kind is float:
        _require(type(value) in (int, float) and abs(value) <= MOST, path, "a number", value)
        return float(value)
    words = {int: "a whole number", str: "a text", bool: "true or false"}
    fits = type(value) is kind and (kind is not int or abs(value) <= MOST)
    _require(fits, path, words[kind], value)
    return value


def _build_record(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path, "an object", value)
    hints = _hints(kind)
    needed = (
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    )
    if missing := [f"{path}.{name}".lstrip(".") for name in needed if name not in value]:
        raise TypeError(f"{', '.join(missing)} missing")
    known = {name: value[name] for name in hints if name in value}
    return kind(**{n: build(hints[n], v, f"{path}.{n}") for n, v in known.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    # Annotations are texts here, which each call evaluates anew.
    return typing.get_type_hints(kind)


def _require(holds: bool, path: str, wanted: str, value: Any) -> None:
    if not holds:
        raise TypeError(f"{path.lstrip('.') or 'it'} is {value!r:.60}, not {wanted}")

"""Dataclasses from JSON, by the types of their fields; what does not fit is named.

For what travels, also to hosts without packages: standard library alone, Python 3.9. Files that
people write are read by pydantic.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

# Beyond what any host counts, and what arithmetic on floats bears.
MOST = 2**64
# `X | None` is another kind of union than Optional[X], and Python 3.9 has only the latter.
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class Constraint(NamedTuple):
    """A rule for a value beside its type: Annotated[int, Constraint("at least 0", ...)]."""

    words: str
    holds: Callable[[Any], bool]

    @classmethod
    def of_pattern(cls, words: str, pattern: str) -> Constraint:
        """A text that is what a regular expression says, from its first character to its last."""
        known = re.compile(pattern)
        return cls(words, lambda text: known.fullmatch(text) is not None)


Count = Annotated[int, Constraint("at least 0", lambda count: count >= 0)]
Amount = Annotated[float, Constraint("at least 0", lambda amount: amount >= 0)]
Digest = Annotated[str, Constraint.of_pattern("a SHA-256 in hex", "[0-9a-f]{64}")]


def decode(kind: Any, value: Any, path: str = "") -> Any:
    """A value of a type from what `json.loads` gave.

    kind: a dataclass, Optional, tuple, Mapping, Literal, Annotated with constraints, a number,
    text, truth value or Path. Keys that a dataclass does not have are passed over; a missing field
    has its default. path: where the value lies. Raises ValueError that names the first place that
    does not fit.
    """
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        found = decode(inner[0], value, path)
        for constraint in inner[1:]:
            _require(constraint.holds(found), path, constraint.words, value)
        return found
    if origin in _UNIONS:
        # There is no union but `X | None`.
        known = next(each for each in inner if each is not type(None))
        return None if value is None else decode(known, value, path)
    if origin is tuple:
        _require(isinstance(value, (list, tuple)), path, "a list", value)
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        _require(len(kinds) == len(value), path, f"a list of {len(kinds)}", value)
        return tuple(
            decode(each, item, f"{path}[{number}]")
            # Of equal length; Python 3.9 has no `strict`.
            for number, (each, item) in enumerate(zip(kinds, value))  # noqa: B905
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), path, "an object", value)
        return {key: decode(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    if origin is typing.Literal:
        _require(value in inner, path, f"one of {', '.join(map(str, inner))}", value)
        return value
    return _decode_plain(kind, value, path)


def _decode_plain(kind: Any, value: Any, path: str) -> Any:
    """A number, text, truth value or path."""
    # `type`, because True is an int too. JSON may have 1 for 1.0, and numbers of any length.
    if kind is float:
        _require(type(value) in (int, float) and abs(value) <= MOST, path, "a number", value)
        return float(value)
    if kind is Path:
        _require(type(value) is str, path, "a path", value)
        return Path(value)
    words = {int: "a whole number", str: "a text", bool: "true or false"}
    fits = type(value) is kind and (kind is not int or abs(value) <= MOST)
    _require(fits, path, words[kind], value)
    return value


def _decode_dataclass(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path, "an object", value)
    hints = _hints(kind)
    needed = (
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    )
    if missing := [f"{path}.{name}".lstrip(".") for name in needed if name not in value]:
        raise ValueError(f"{', '.join(missing)} missing")
    known = {name: value[name] for name in hints if name in value}
    return kind(**{n: decode(hints[n], v, f"{path}.{n}") for n, v in known.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    # Annotations are texts here, which each call evaluates anew.
    return typing.get_type_hints(kind, include_extras=True)


def _require(holds: bool, path: str, wanted: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{path.lstrip('.') or 'it'} is {value!r:.60}, not {wanted}")

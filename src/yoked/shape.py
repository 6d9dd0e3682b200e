"""What foreign JSON must look like: values are taken only in the form that whoever uses them needs.

A shape is a type (`float` takes whole numbers too), a predicate, None, a tuple of alternatives,
`[shape]` for a list, a `Row` for a list of fixed length, `{str: shape}` for an object of any keys,
or an object with the keys that must be there; `"key?"` may be missing. Other keys are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

Shape = Any


class Row(tuple):  # type: ignore[type-arg]
    """A list of fixed length, with a shape for each place."""


def anything(value: object) -> bool:
    """What nobody reads, or its user checks."""
    del value
    return True


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of 64 bits. JSON has longer ones, which no clock, size
    or process has, and `true` is another thing.
    """
    return type(value) is int and -(2**63) <= value < 2**63


def _is_number(value: object) -> TypeGuard[float]:
    return is_int(value) or isinstance(value, float)


def amount(value: object) -> bool:
    """A number of things, bytes or places."""
    return is_int(value) and value >= 0


def quantity(value: object) -> bool:
    """A finite time, rate or size."""
    return _is_number(value) and math.isfinite(value) and value >= 0


def require(value: Any, shape: Shape) -> None:
    """Raise ValueError with what is wrong with a value that has not the shape."""
    if (why := misfit(value, shape)) is not None:
        raise ValueError(why)


def misfit(value: Any, shape: Shape, where: str = "it") -> str | None:
    """What is wrong with a value, in words; None: it has the shape."""
    if isinstance(shape, Row):
        if not isinstance(value, list) or len(value) != len(shape):
            return f"{where} is no list of {len(shape)}"
        return _first(misfit(*each, where) for each in zip(value, shape, strict=True))
    if isinstance(shape, tuple):
        problems = [misfit(value, each, where) for each in shape]
        return None if None in problems else problems[0]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return _first(misfit(each, shape[0], f"{where}[{n}]") for n, each in enumerate(value))
    if isinstance(shape, Mapping):
        return _misfit_object(value, shape, where)
    return None if _is_plain(value, shape) else f"{where} is {value!r:.60}"


def _misfit_object(value: Any, shape: Mapping[Any, Shape], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where} is no object"
    if str in shape:
        return _first(misfit(each, shape[str], f"{where}.{key}") for key, each in value.items())
    problems = []
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            problems.append(misfit(value[name], inner, f"{where}.{name}"))
        elif name == key:
            problems.append(f"{where} has no {name}")
    return _first(problems)


def _is_plain(value: Any, shape: Shape) -> bool:
    if shape is None:
        return value is None
    if shape is int:
        return is_int(value)
    if shape is float:
        return _is_number(value)
    if isinstance(shape, type):
        return isinstance(value, shape)
    return bool(shape(value))


def _first(problems: Iterable[str | None]) -> str | None:
    return next((each for each in problems if each is not None), None)

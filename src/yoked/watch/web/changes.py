"""What changed between two states of a page, so that an update carries little.

A state is JSON data. A change of a value is one of
    [new]                   it is another one
    []                      it is gone (of an object's key)
    [skip, keep, added]     a list: of the old one leave out `skip`, then take `keep`, then `added`
    {key: change, ...}      some parts of an object, or of a list by their places
page/live.js applies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from yoked.text import plain

_DIGITS = 6
# From here on (times of a clock, tokens, bytes) thousandths are kept.
_LARGE = 1e5


def as_data(value: Any) -> Any:
    """A value as dicts and lists of its own, which nobody else changes. Columns of numbers, which
    are most of a view, are taken as they are.
    """
    if is_dataclass(value):
        return {each.name: as_data(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], float | int | None):
            return list(value)
        return [as_data(each) for each in value]
    return value


def sendable(value: Any) -> Any:
    """A value as JSON data: figures rounded to what a page shows, control characters visible.

    What stays takes as long as what changes, so a change is found first.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return round(value, 3) if abs(value) >= _LARGE else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str):
        return plain(value)
    if is_dataclass(value):
        return sendable(as_data(value))
    if isinstance(value, Mapping):
        return {plain(str(name)): sendable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(each) for each in value]
    return value


def changes(old: Any, new: Any) -> Any:
    """The change that makes `old` what `new` is, both as `as_data` returns them; None: there is
    none.
    """
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, Any] = {name: [] for name in old if name not in new}
        found |= {name: [new[name]] for name in new if name not in old}
        both = ((name, changes(old[name], new[name])) for name in new if name in old)
        return found | {name: each for name, each in both if each is not None}
    if isinstance(old, list) and isinstance(new, list) and old and new:
        if len(old) == len(new) and all(isinstance(each, dict | list) for each in (*old, *new)):
            pairs = enumerate(zip(old, new, strict=True))
            each_one = ((str(place), changes(*pair)) for place, pair in pairs)
            return {place: each for place, each in each_one if each is not None}
        skip, keep = _slide(old, new)
        if keep:
            return [skip, keep, new[keep:]]
    return [new]


def _slide(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """How many to leave out at the front of the old list, so that most of what follows stays."""
    best = (0, 0)
    for skip, value in enumerate(old):
        if value != new[0]:
            continue
        longest = min(len(old) - skip, len(new))
        if longest <= best[1]:
            break
        keep = next((at for at in range(longest) if old[skip + at] != new[at]), longest)
        if keep > best[1]:
            best = (skip, keep)
        if skip + keep == len(old):
            break
    return best

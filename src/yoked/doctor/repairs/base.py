"""The mark by which a line is known for what it does, and what no line can do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec

from yoked.records.examination import Fix
from yoked.records.shell import Line, shell_line

_P = ParamSpec("_P")


def repair(make: Callable[_P, Fix]) -> Callable[_P, Fix]:
    """Have the lines that a function makes bear its name."""

    @functools.wraps(make)
    def named(*args: _P.args, **kwargs: _P.kwargs) -> Fix:
        return replace(make(*args, **kwargs), repair=make.__name__)

    return named


def as_root(host: str, words: str, back: str | None = None, /, **values: object) -> Fix:
    """A line for root. words, values: as of `shell_line`; back: the words that take it back."""
    undo = None if back is None else shell_line(back, **values)
    return Fix(host, shell_line(words, **values), root=True, undo=undo)


def template(words: str, /) -> Callable[..., Line]:
    """A line whose values are named later. words: as of `shell_line`."""
    return functools.partial(shell_line, words)


def by_hand_later(words: str, /) -> Callable[..., Fix]:
    """`by_hand`, with the host and the values named later."""

    def make(host: str, /, **values: object) -> Fix:
        return by_hand(host, words, **values)

    return make


@repair
def by_hand(host: str, words: str, /, **values: object) -> Fix:
    """What only a person can do. host "": wherever. words, values: as of `shell_line`, for a person
    pastes what stands there; `{host}` is known without.
    """
    return Fix(host, shell_line(words, **{"host": host, **values}), by_hand=True)

"""The mark by which a line is known for what it does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec

from yoked.records.examination import Fix

_P = ParamSpec("_P")


def repair(make: Callable[_P, Fix]) -> Callable[_P, Fix]:
    """Have the lines that a function makes bear its name."""

    @functools.wraps(make)
    def named(*args: _P.args, **kwargs: _P.kwargs) -> Fix:
        return replace(make(*args, **kwargs), repair=make.__name__)

    return named

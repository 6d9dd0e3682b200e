"""Act on every rank, and fail on every rank: none waits for one that could not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from yoked.errors import YokedError
from yoked.train.sync.patience import in_peace
from yoked.train.sync.wire import Wire

T = TypeVar("T")


def on_every(wire: Wire, act: Callable[[], T]) -> T:
    """Act on all ranks; where one fails, all raise its error instead of waiting for it."""
    failure: YokedError | None = None
    result: T | None = None
    try:
        result = act()
    except YokedError as problem:
        failure = problem
    failures = [problem for problem in wire.gather_objects(failure) if problem is not None]
    if failures:
        raise failures[0] if failure is None else failure
    return result  # type: ignore[return-value]


def on_some(wire: Wire, works: bool, act: Callable[[], T], what: str) -> T | None:
    """Act on the ranks that work, however long it takes; errors as in `on_every`."""

    def attempt() -> tuple[T | None, YokedError | None]:
        try:
            return act(), None
        except YokedError as problem:
            return None, problem

    result, failure = in_peace(wire, works, attempt, what) or (None, None)

    def tell() -> T | None:
        if failure is not None:
            raise failure
        return result

    return on_every(wire, tell)


def on_first(wire: Wire, act: Callable[[], T]) -> T:
    """Act on rank 0 alone and give every rank its result, or its error."""
    result = on_every(wire, lambda: act() if wire.rank == 0 else None)
    return wire.gather_objects(result)[0]  # type: ignore[no-any-return]

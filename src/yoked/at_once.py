"""Act on several things at the same time: hosts, mostly, which answer when they like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def at_once(act: Callable[[T], U], items: Iterable[T], *, leave: bool = False) -> list[U]:
    """Act on each item in a thread of its own; the results in order.

    Returns, or raises the first failure in that order, when all have ended. So does Ctrl-C, as who
    undoes what was done must know all of it. leave: Ctrl-C does not wait for what takes long and
    ends by itself, once the caller closes the connections that it uses.
    """
    wanted = list(items)
    pool = ThreadPoolExecutor(max_workers=max(1, len(wanted)))
    wait = True
    try:
        # Not `map`: at a failure it would cancel what has not begun.
        waiting = [pool.submit(act, item) for item in wanted]
        return [each.result() for each in waiting]
    except KeyboardInterrupt:
        wait = not leave
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=not wait)

"""Act on several things at the same time: hosts, mostly, which answer when they like.

Each act has a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from yoked.errors import YokedError

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")


class _Acts(Generic[K, T]):
    """Acts under way. results and problems: what came of each, once it has ended."""

    def __init__(self, acts: Mapping[K, Callable[[], T]]) -> None:
        self.results: dict[K, T] = {}
        self.problems: dict[K, BaseException] = {}
        self._count = len(acts)
        self._changed = threading.Condition()
        for name, act in acts.items():
            # A daemon: one that is left behind must not hold up the end of the process.
            run = threading.Thread(target=self._run, args=(name, act), name=str(name), daemon=True)
            try:
                run.start()
            except RuntimeError as problem:
                # The system gives no more threads; the acts that have begun are waited for.
                self.problems[name] = problem

    def wait(self, limit_s: float | None = None) -> None:
        """Return when all have ended, or after limit_s."""
        # Not Thread.join: before Python 3.13 a Ctrl-C in it counts the thread as ended.
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.results) + len(self.problems) == self._count, limit_s
            )

    def _run(self, name: K, act: Callable[[], T]) -> None:
        try:
            self.results[name] = act()
        except BaseException as problem:  # noqa: BLE001 - raised or told by whoever waits
            self.problems[name] = problem
        with self._changed:
            self._changed.notify_all()


def at_once(act: Callable[[T], U], items: Iterable[T], *, leave: bool = False) -> list[U]:
    """Act on each item; the results in order.

    Returns, or raises the first failure in that order, when all have ended. So does Ctrl-C, as who
    undoes what was done must know all of it. leave: Ctrl-C does not wait for what takes long and
    ends by itself, once the caller closes the connections that it uses.
    """
    acts = _Acts({number: partial(act, item) for number, item in enumerate(items)})
    try:
        acts.wait()
    except KeyboardInterrupt:
        if not leave:
            acts.wait()
        raise
    for _, problem in sorted(acts.problems.items()):
        raise problem
    return [result for _, result in sorted(acts.results.items())]


def map_hosts(
    ask: Callable[[T], U], hosts: Mapping[str, T]
) -> tuple[dict[str, U], dict[str, YokedError]]:
    """Ask all hosts; the answers and the failures, by name, in the order of the hosts."""

    def act(host: T) -> U | YokedError:
        try:
            return ask(host)
        except YokedError as problem:
            return problem

    # Of equal length; Python 3.9 has no `strict`.
    found = dict(zip(hosts, at_once(act, hosts.values())))  # noqa: B905
    return (
        {name: each for name, each in found.items() if not isinstance(each, YokedError)},
        {name: each for name, each in found.items() if isinstance(each, YokedError)},
    )


def gather_within(
    limit_s: float, acts: Mapping[str, Callable[[], Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(results, why there is none), both by name.

    An act that takes longer than limit_s is left behind: a lookup of a name, or a file of a server
    that is gone, cannot be interrupted. Nothing that an act raises is a failure of the rest.
    """
    under_way = _Acts(acts)
    under_way.wait(limit_s)
    # Copies: whoever is late must not write into an answer.
    results, problems = dict(under_way.results), dict(under_way.problems)
    late = dict.fromkeys(acts.keys() - results.keys(), f"no answer in {limit_s:g} s")
    return results, {**late, **{name: repr(problem) for name, problem in problems.items()}}

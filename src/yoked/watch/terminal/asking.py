"""The calls of a run that is looked at, one after the other, beside the thread that draws."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from yoked.errors import YokedError

_T = TypeVar("_T")
# For a call under way, when the person leaves: what it asks is of no use to anybody any more.
_END_S = 1.0


class Asker:
    """Makes calls in a thread of its own, in the order in which they were asked for.

    deliver: has a function called in the thread that draws.
    """

    def __init__(self, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._deliver = deliver
        self._calls: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        # A call may take minutes, and the person wants to leave now.
        self._thread = threading.Thread(target=self._work, name="yoked-watch", daemon=True)
        self._ended = False
        self._thread.start()

    def ask(
        self,
        call: Callable[[], _T],
        took: Callable[[_T], None],
        failed: Callable[[YokedError], None],
        bug: Callable[[Exception], None],
    ) -> None:
        """Make a call; then one of the others is called in the thread that draws."""

        def made() -> Callable[[], None]:
            try:
                answer = call()
            except YokedError as problem:
                return _with(failed, problem)
            except Exception as problem:  # noqa: BLE001 - raised where the view was opened
                return _with(bug, problem)
            return _with(took, answer)

        self._calls.put(made)

    def end(self) -> None:
        """Make no further call."""
        self._ended = True
        self._calls.put(None)
        self._thread.join(_END_S)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._ended:
            answer = call()
            if not self._ended:
                self._deliver(answer)


def _with(told: Callable[[Any], None], what: object) -> Callable[[], None]:
    return lambda: told(what)

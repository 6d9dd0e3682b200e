"""Who looks: one thread for all pages, which looks while a page is open."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from yoked.errors import UsageError, YokedError
from yoked.text import one_line
from yoked.watch.view import RunRow, Watched
from yoked.watch.web.changes import as_data, changes, sendable

_T = TypeVar("_T")

# Between two looks: at a run, and at the list to choose from.
_LOOK_EVERY_S, _RUNS_EVERY_S = 1.0, 10.0
# A page that hears nothing for three times as long takes the connection for lost.
_ALIVE_S = 5.0
# A view that is older is not shown to a page that comes: a newer one is on its way.
_SHOWN_FOR_S = 10.0
# Event of the stream, and its data.
Message = tuple[str, Any]


class Looker:
    """Looks at a run for pages. All methods but `__init__` belong to one event loop.

    chosen: whether `watched` has a run to look at; False: a page chooses one.

    A state is what a page shows: {"view": as `View`, or None, "problem": {"what", "fix", "since_s"}
    or None, "choice": a list of `RunRow` while none is chosen, else None}. After a look that fails,
    the last view stays.
    """

    def __init__(self, watched: Watched, *, chosen: bool = True) -> None:
        self._watched = watched
        self._chosen = chosen
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._state: dict[str, Any] | None = None
        self._looked_s = 0.0
        self._names: frozenset[str] = frozenset()
        self._pages = 0
        self._wanted, self._soon, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ended = False
        # A daemon: a look may wait for a host for seconds, and nobody waits for it at the end.
        threading.Thread(target=self._work, name="yoked watch", daemon=True).start()

    @property
    def pages(self) -> int:
        """How many are open."""
        return self._pages

    def end(self) -> None:
        """End all streams of pages, and the thread after what it is at."""
        self._ended = True
        self._calls.put(None)
        self._publish(self._state)

    async def run(self) -> None:
        """Look again and again, while a page is open. Ends by an exception that is a bug."""
        while True:
            await self._wanted.wait()
            self._soon.clear()
            self._publish(await self._look())
            self._looked_s = time.monotonic()
            again_s = _LOOK_EVERY_S if self._chosen else _RUNS_EVERY_S
            try:
                await asyncio.wait_for(self._soon.wait(), again_s)
            except TimeoutError:
                continue

    async def follow(self) -> AsyncIterator[Message]:
        """What a page is sent: the whole state, then what changes; "alive" in between."""
        self._pages += 1
        self._wanted.set()
        is_old = time.monotonic() - self._looked_s > _SHOWN_FOR_S
        passed_over, sent = self._state if is_old else None, None
        try:
            while not self._ended:
                state, news = self._state, self._news
                if state is not sent and state is not passed_over:
                    assert state is not None
                    if sent is None:
                        yield "whole", sendable(state)
                    else:
                        yield "changes", sendable(changes(sent, state))
                    sent = state
                    continue
                try:
                    await asyncio.wait_for(news.wait(), _ALIVE_S)
                except TimeoutError:
                    yield "alive", None
        finally:
            self._pages -= 1
            if not self._pages:
                self._wanted.clear()

    async def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        """As `Watched.curve`, as JSON data. Raises YokedError."""
        found = await self._ask(lambda: sendable(self._watched.curve(first, last, points)))
        assert isinstance(found, dict)
        return found

    async def runs(self) -> list[RunRow]:
        """As `Watched.runs`. Raises YokedError."""
        rows = await self._ask(self._watched.runs)
        self._names = frozenset(each.run for each in rows)
        return rows

    async def choose(self, run: str) -> None:
        """Look at another run of the list, for all pages. Raises YokedError.

        Others are refused: what a page asks for is no path of this machine.
        """
        if run not in self._names:
            raise UsageError(f"no run of the list is named {one_line(run)}", fix="list them again")
        await self._ask(lambda: self._watched.choose(run))
        self._chosen = True
        self._soon.set()

    async def _look(self) -> dict[str, Any]:
        before = self._state or {"view": None, "problem": None, "choice": None}
        try:
            if not self._chosen:
                return {"view": None, "problem": None, "choice": as_data(await self.runs())}
            view = await self._ask(lambda: as_data(self._watched.look()))
        except YokedError as problem:
            since_s = (before["problem"] or {}).get("since_s", time.time())
            told = {"what": problem.what, "fix": list(problem.fix), "since_s": since_s}
            return {**before, "problem": told}
        return {"view": view, "problem": None, "choice": None}

    def _publish(self, state: dict[str, Any] | None) -> None:
        self._state = state
        self._news.set()
        self._news = asyncio.Event()

    async def _ask(self, call: Callable[[], _T]) -> _T:
        """Have the thread make a call, after those before it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def give(result: _T | None, problem: BaseException | None) -> None:
            if answer.done():
                return
            if problem is not None:
                answer.set_exception(problem)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def made() -> None:
            try:
                result, problem = call(), None
            except BaseException as raised:  # noqa: BLE001 - raised again in the loop
                result, problem = None, raised
            try:
                loop.call_soon_threadsafe(give, result, problem)
            except RuntimeError:
                # The loop is closed: the page's server has ended.
                return

        self._calls.put(made)
        return await answer

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

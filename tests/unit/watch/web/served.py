"""A server of the page, on loopback, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from yoked.watch.view import Watched
from yoked.watch.web.serving import Server, listening

TOKEN = "a-token_of-these-tests"


class Served:
    """A server in a thread of this process."""

    def __init__(self, watched: Watched, port: int = 0, *, chosen: bool = True) -> None:
        self._listener = listening(port, lambda _: None)
        self.port: int = self._listener.getsockname()[1]
        self.server = Server(watched, TOKEN, chosen=chosen)
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}/"

    def _run(self) -> None:
        try:
            asyncio.run(self.server.until_ended(self._listener))
        except BaseException as problem:  # noqa: BLE001 - for the test to see
            self.problem = problem

    def end(self) -> None:
        self.server.should_exit = True
        self._thread.join()
        self._listener.close()


@contextmanager
def served(watched: Watched, port: int = 0, *, chosen: bool = True) -> Iterator[Served]:
    found = Served(watched, port, chosen=chosen)
    try:
        yield found
    finally:
        found.end()
    assert found.problem is None, found.problem

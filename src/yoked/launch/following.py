"""Follow the output of a run over connections that are cut: each byte comes once."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yoked.errors import HostError, YokedError
from yoked.remote.client import AgentClient, Part

# An attempt that began while the network was away may wait for seconds after it is back, because
# TCP asks ever more rarely; a fresh one beside it does not.
AGAIN_EVERY_S = 0.5
# When the network is back all of them arrive at once, and each costs a handshake and an agent.
AT_ONCE = 3

Reconnect = Callable[[str], AgentClient]


class HostLog:
    """The output of a run on one host. wanted: what `job_logs` is asked for.

    on_cut, on_back: called with the host when its connection ended, and when it has a new one.
    give_up: asked again and again while there is none; true ends the waiting.
    """

    def __init__(
        self,
        client: AgentClient,
        run: str,
        reconnect: Reconnect,
        wanted: Mapping[str, Any],
        *,
        on_cut: Callable[[str, YokedError], None],
        on_back: Callable[[str], None],
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.client = client
        self._run = run
        self._reconnect = reconnect
        self._wanted = wanted
        self._on_cut = on_cut
        self._on_back = on_back
        self._give_up = give_up
        self._offsets: dict[str, int] = {}

    def parts(self) -> Iterator[Part]:
        """The parts of `job_logs`, to the end of the run where that was wanted.

        Raises HostError when the connection ended, unless the run is being followed.
        """
        while True:
            try:
                yield from self._listen()
            except HostError as problem:
                if not self._wanted.get("follow"):
                    raise
                self._come_back(problem)
            else:
                return

    def _listen(self) -> Iterator[Part]:
        wanted = {**self._wanted, "run": self._run, "offsets": self._offsets}
        for part in self.client.stream("job_logs", **wanted):
            content = part.content
            if "begin" in content:
                self._offsets.update(content["begin"])
                continue
            name = f"{content['rank']}.{content['attempt']}.{content['stream']}"
            self._offsets[name] = content["offset"] + len(part.data)
            yield part

    def _come_back(self, problem: HostError) -> None:
        host = self.client.host
        self._on_cut(host, problem)
        self.client.close()
        self.client = reach_again(lambda: self._reconnect(host), problem, self._give_up)
        self._on_back(host)


def reach_again(
    connect: Callable[[], AgentClient], problem: YokedError, give_up: Callable[[], bool]
) -> AgentClient:
    """Connect as soon as that can be done; raises problem when give_up says so."""
    arrived: queue.Queue[AgentClient] = queue.Queue()
    free = threading.Semaphore(AT_ONCE)
    done = threading.Event()

    def attempt() -> None:
        try:
            with contextlib.suppress(YokedError):
                client = connect()
                arrived.put(client)
                if done.is_set():
                    _close_all(arrived)
        finally:
            free.release()

    try:
        while True:
            if free.acquire(blocking=False):
                threading.Thread(target=attempt, name="reconnect", daemon=True).start()
            with contextlib.suppress(queue.Empty):
                return arrived.get(timeout=AGAIN_EVERY_S)
            if give_up():
                raise problem
    finally:
        # Those that come later are not needed.
        done.set()
        _close_all(arrived)


def _close_all(arrived: queue.Queue[AgentClient]) -> None:
    while True:
        try:
            arrived.get_nowait().close()
        except queue.Empty:
            return

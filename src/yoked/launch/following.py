"""Follow the output of a run over connections that are cut: each byte comes once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yoked.errors import HostError, YokedError
from yoked.remote.client import AgentClient, Part
from yoked.remote.ssh import CONNECT_TIMEOUT_S

# A fresh attempt so often: one that began while the network was away asks ever more rarely (TCP
# doubles its wait), and would stay unheard for seconds after it is back.
AGAIN_EVERY_S = 0.4
# After so long a cut hardly anybody looks on: attempts follow each other slowly then, for hours
# where a host does not come back.
HASTE_ENDS_S = 60.0
LATER_EVERY_S = 2.0
# Such an attempt is over before TCP would ask again, so that not all of them arrive at once.
HASTY_S = 1
AT_ONCE = 4
_LOOK_ROUND_EVERY_S = 2.0

# Connects to a host that may take so many seconds to answer.
Reconnect = Callable[[str, int], AgentClient]


class HostLog:
    """The output of a run on one host. wanted: what `job_logs` is asked for.

    on_cut, on_back: called with the host when its connection ended, and when it has a new one.
    give_up: asked again and again while there is none, from another thread; true ends the waiting.
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
        self._wanted = dict(wanted)
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
                # A file that appears during a cut is wanted from its beginning.
                self._wanted["tail_lines"] = None
                continue
            name = f"{content['rank']}.{content['attempt']}.{content['stream']}"
            self._offsets[name] = content["offset"] + len(part.data)
            yield part

    def _come_back(self, problem: HostError) -> None:
        host = self.client.host
        self._on_cut(host, problem)
        self.client.close()
        self.client = reach_again(
            lambda patience_s: self._reconnect(host, patience_s), problem, self._give_up
        )
        self._on_back(host)


def reach_again(
    connect: Callable[[int], AgentClient], problem: YokedError, give_up: Callable[[], bool]
) -> AgentClient:
    """Connect as soon as that can be done; raises problem when give_up says so.

    connect gets the seconds that a host may take to answer: few, in attempts that follow each
    other closely, and in one beside them as many as a slow host needs.
    """
    attempts = _Attempts(connect)
    try:
        _start(attempts.be_patient)
        _start(lambda: attempts.look_round(give_up))
        while True:
            if attempts.in_haste and attempts.free.acquire(blocking=False):
                _start(attempts.hurry)
            with contextlib.suppress(queue.Empty):
                client = attempts.outcome.get(timeout=AGAIN_EVERY_S)
                if client is None:
                    raise problem
                return client
    finally:
        # Those that come later are not needed.
        attempts.done.set()
        attempts.close_all()


class _Attempts:
    """What threads do to reach a host. outcome: a client; None: it is no use."""

    def __init__(self, connect: Callable[[int], AgentClient]) -> None:
        self._connect = connect
        self.outcome: queue.Queue[AgentClient | None] = queue.Queue()
        self.free = threading.Semaphore(AT_ONCE)
        self.done = threading.Event()
        self._begun = time.monotonic()

    @property
    def in_haste(self) -> bool:
        return time.monotonic() - self._begun < HASTE_ENDS_S

    def hurry(self) -> None:
        try:
            self._attempt(HASTY_S)
        finally:
            self.free.release()

    def be_patient(self) -> None:
        while not self.done.wait(AGAIN_EVERY_S if self.in_haste else LATER_EVERY_S):
            self._attempt(CONNECT_TIMEOUT_S)

    def look_round(self, give_up: Callable[[], bool]) -> None:
        while not give_up():
            if self.done.wait(_LOOK_ROUND_EVERY_S):
                return
        self.outcome.put(None)

    def close_all(self) -> None:
        while True:
            try:
                client = self.outcome.get_nowait()
            except queue.Empty:
                return
            if client is not None:
                client.close()

    def _attempt(self, patience_s: int) -> None:
        with contextlib.suppress(YokedError):
            self.outcome.put(self._connect(patience_s))
            if self.done.is_set():
                self.close_all()


def _start(act: Callable[[], None]) -> None:
    threading.Thread(target=act, name="reconnect", daemon=True).start()

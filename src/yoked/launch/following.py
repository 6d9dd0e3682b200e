"""Follow the output of a run over connections that are cut: each byte comes once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yoked.errors import HostError, YokedError
from yoked.remote.client import AgentClient, Part
from yoked.remote.ssh import CONNECT_TIMEOUT_S

# After a cut; and from the beginning of one attempt to that of the next.
FIRST_S = 1.0
AGAIN_EVERY_S = 2.0
# TCP asks 0, 1 and 3 s after the beginning of an attempt, and then ever more rarely (RFC 6298). An
# attempt that is given up after 4 s hears within 2 s that the network is back.
HASTY_S = 4
# A host with crowded cores takes longer, and after so many attempts hardly anybody looks on.
_HASTY_ATTEMPTS = 10
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

    One attempt at a time, after FIRST_S and then every AGAIN_EVERY_S. connect gets the seconds
    that a host may take to answer.
    """
    done, hopeless = threading.Event(), threading.Event()

    def look_round() -> None:
        while not give_up():
            if done.wait(_LOOK_ROUND_EVERY_S):
                return
        hopeless.set()

    # Beside the attempts: to ask other hosts, which may be cut off as well, takes seconds.
    threading.Thread(target=look_round, name="look-round", daemon=True).start()
    pause_s = FIRST_S
    attempts = 0
    try:
        while not hopeless.wait(pause_s):
            begun_s = time.monotonic()
            patience_s = HASTY_S if attempts < _HASTY_ATTEMPTS else CONNECT_TIMEOUT_S
            with contextlib.suppress(YokedError):
                return connect(patience_s)
            attempts += 1
            pause_s = max(0.0, begun_s + AGAIN_EVERY_S - time.monotonic())
        raise problem
    finally:
        done.set()

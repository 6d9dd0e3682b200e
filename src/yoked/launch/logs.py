"""What the ranks of a run wrote, of all its hosts: in the order of time, or as it comes."""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yoked.launch.following import HostLog, Reconnect
from yoked.remote.client import AgentClient, Part

_Event = tuple[str, Part] | Exception | None


def parts_of(
    clients: Mapping[str, AgentClient],
    run: str,
    reconnect: Reconnect,
    wanted: Mapping[str, Any],
    note: Callable[[str], None],
) -> Iterator[tuple[str, Part]]:
    """(host, part) of each piece of output. wanted: as `job_logs` takes it; followed, they come
    as they are written, over connections that are cut and made again.
    """
    leaving = threading.Event()

    def log_of(name: str) -> HostLog:
        def on_cut(*_: object) -> None:
            if not leaving.is_set():
                note(f"{name} is out of reach, its part of the run goes on")

        return HostLog(
            clients[name],
            run,
            reconnect,
            wanted,
            on_cut=on_cut,
            on_back=lambda _: note(f"{name} is back"),
            give_up=leaving.is_set,
        )

    logs = {name: log_of(name) for name in clients}
    if not wanted["follow"]:
        named = [_named(name, log) for name, log in logs.items()]
        yield from heapq.merge(*named, key=lambda pair: float(pair[1].content["time_s"]))
        return
    try:
        yield from _as_they_come(logs)
    finally:
        leaving.set()
        for name, log in logs.items():
            if log.client is not clients[name]:
                log.client.close()


def _named(name: str, log: HostLog) -> Iterator[tuple[str, Part]]:
    for part in log.parts():
        yield name, part


def _as_they_come(logs: Mapping[str, HostLog]) -> Iterator[tuple[str, Part]]:
    # Bounded: a reader that is slower than the hosts must not fill this machine's memory.
    events: queue.Queue[_Event] = queue.Queue(maxsize=1000)

    def pump(name: str, log: HostLog) -> None:
        try:
            for part in log.parts():
                events.put((name, part))
            events.put(None)
        except Exception as problem:  # noqa: BLE001 - raised by whoever reads
            events.put(problem)

    for name, log in logs.items():
        threading.Thread(target=pump, args=(name, log), daemon=True).start()
    sources = len(logs)
    while sources:
        event = events.get()
        if isinstance(event, Exception):
            raise event
        if event is None:
            sources -= 1
        else:
            yield event

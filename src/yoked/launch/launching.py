"""A launch, from the command to the first step: what it waits for, and which host never comes.

The hosts' programs meet by themselves, but one that died before it had met the others is missed by
them only after a minute. Whoever looks on asks all hosts, sees it at once, and tells the others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from yoked.agent.jobfolder import ACTIVE
from yoked.core.parallel import at_once, map_hosts
from yoked.diagnosis.cause import SLOW
from yoked.errors import YokedError
from yoked.launch.registry import Record, warning_lines
from yoked.liveline import LivePart, LiveText
from yoked.remote.client import AgentClient, RemoteBug
from yoked.units import listed

T = TypeVar("T")
U = TypeVar("U")

# Hosts that have met tell each other; a program without steps is looked at to its first line.
LOOK_EVERY_S, LOOK_RARELY_S = 0.4, 2.0
_MEET_WITHIN_S = 90.0
# Where nothing can be drawn over itself, a line every 15 s at the latest.
SAY_EVERY_S = 14.0
_LOOK_AT_LINE_EVERY_S = 1.0
_NOTE_CELLS = 160
# A rank writes its live line twice a second.
_DRAW_EVERY_S = 0.2
_JOIN_S = 2.0
_TELL_S = 5.0
# What a rank may be about (launch/bootstrap/stage.py), the earliest first: ranks that meet wait for
# those that do not yet.
_DOING: Mapping[str, str] = {
    "starting": "starting Python",
    "importing": "importing modules",
    "importing torch": "importing torch",
    "debugged": "held by a debugger",
    "loading data": "loading data",
    "compiling": "compiling",
    "evaluating": "evaluating",
    "saving": "saving",
    "training": "running without a line or a step yet",
    "meeting": "ranks meeting",
    "waiting for peers": "ranks waiting for each other",
}


class Stage:
    """What a launch is about before the hosts' programs run."""

    def __init__(self, what: str) -> None:
        self.doing(what)

    def doing(self, what: str) -> None:
        """Something of which it is not known on whom it waits."""
        self._set(lambda: what)

    def waits_for(self, hosts: Callable[[], list[str]], what: str = "waiting for") -> None:
        """Hosts, fewer and fewer."""
        self._set(lambda: f"{what} {listed(hosts())}")

    def at_once(self, what: str, act: Callable[[T], U], hosts: Mapping[str, T]) -> list[U]:
        """Act on all hosts; those that are not through are named meanwhile.

        Ctrl-C does not wait, as with `leave` of `core.parallel.at_once`.
        """
        left = dict(hosts)
        self.waits_for(lambda: list(left) or list(hosts), what)

        def act_on(host: str) -> U:
            done = act(hosts[host])
            del left[host]
            return done

        return at_once(act_on, hosts, leave=True)

    def line(self) -> LiveText:
        """As it is to be seen now."""
        what, since_s = self._now
        return LiveText.of(what(), since_s=since_s)

    def _set(self, what: Callable[[], str]) -> None:
        self._now = (what, time.monotonic())


class Launch:
    """A run that may not have begun on all hosts.

    ask: what the hosts tell of it now. clients: the hosts that can be told. note: says a line, from
    another thread.
    """

    def __init__(
        self,
        ask: Callable[[], Record],
        clients: Callable[[], Mapping[str, AgentClient]],
        note: Callable[[str], None],
    ) -> None:
        self._ask, self._clients, self._note = ask, clients, note
        self._held_up: tuple[object, ...] | None = None
        self._warned = False
        self._told: set[str] = set()
        self.line = LiveText()
        self.over = False

    def look(self) -> bool:
        """Look once, and tell the others of a host that is over; whether there is one."""
        try:
            record = self._ask()
        except (YokedError, RemoteBug):
            # Hosts that are cut off come back, or whoever follows the output tells.
            return False
        self.over = self.over or has_begun(record)
        self.line = line_of(record)
        self._say_held_up(record)
        self._say_warnings(record)
        failure = failed_alone(record)
        if failure is None:
            return False
        self._tell(record, failure)
        return True

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again meanwhile: until it has begun, then for what holds it up."""

        def look(left: threading.Event) -> None:
            rarely_s = time.monotonic() + _MEET_WITHIN_S
            while True:
                often = not self.over and time.monotonic() < rarely_s
                if left.wait(LOOK_EVERY_S if often else LOOK_RARELY_S):
                    return
                self.look()

        with _beside(look):
            yield

    def _say_held_up(self, record: Record) -> None:
        """Say what holds it up when that changes, and when it has passed."""
        root = record.held_up[0] if record.held_up else None
        if root is None and len(record.hosts) < len(record.nodes):
            # A host that gives no answer now may be the one that told it.
            return
        key = None if root is None else (root["cause"], root.get("rank"), *root["hosts"])
        if key == self._held_up:
            return
        if key is not None:
            word = "slow" if key[0] in SLOW else "held up"
            self._note(f"{word}: {record.held_up_line}")
        elif record.active:
            self._note("it gets on again")
        self._held_up = key

    def _say_warnings(self, record: Record) -> None:
        """Say once, when it is found, what is wrong though it gets on; and when that has passed."""
        warnings = record.warnings
        if bool(warnings) == self._warned or not record.active:
            # Of a run that is over its end tells.
            return
        self._warned = bool(warnings)
        for warning in warnings:
            self._note("\n".join(warning_lines(warning)))
        if not warnings:
            self._note("its ranks share what they learn by now")

    def _tell(self, record: Record, failure: Mapping[str, Any]) -> None:
        """Have the hosts on which the run goes on end it, for this reason."""
        goes_on = [host for host, told in record.hosts.items() if told["state"] in ACTIVE]
        clients = {
            host: client
            for host, client in self._clients().items()
            if host in goes_on and host not in self._told
        }

        def tell(client: AgentClient) -> None:
            named: dict[str, Any] = {"run": record.run, "timeout_s": _TELL_S}
            try:
                client.call("job_failed", launch_id=record.launch_id, failure=failure, **named)
            except (YokedError, RemoteBug):
                # There may be no room for a file: then it ends without the reason.
                client.call("job_stop", how="terminate", launch_id=record.launch_id, **named)

        told, _ = map_hosts(tell, clients)
        self._told.update(told)


def failed_alone(record: Record) -> Mapping[str, Any] | None:
    """The failure of a host whose part is over while that of others goes on; None: there is none.

    Once the hosts' programs have met they tell each other: here it is one that has not come.
    """
    if not record.active:
        return None
    failures = (told["failure"] for told in record.hosts.values() if told["state"] not in ACTIVE)
    return next((failure for failure in failures if failure), None)


def has_begun(record: Record) -> bool:
    """Whether nothing is waited for any more: a step was taken, or it is over."""
    stages = (told.get("stage") or {} for told in record.hosts.values())
    return not record.active or any(stage.get("begun") for stage in stages)


def line_of(record: Record) -> LiveText:
    """What a launch waits for, on which host, and since when, and what the other ranks are about;
    without parts: it waits for nothing.
    """
    if has_begun(record):
        return LiveText()
    by_node = dict(sorted(record.hosts.items(), key=lambda item: int(item[1]["node_rank"])))
    stages: dict[str, Mapping[str, Any]] = {
        host: told["stage"] for host, told in by_node.items() if told.get("stage")
    }

    def on(hosts: Iterable[str]) -> str:
        return f" on {listed(hosts)}" if len(record.nodes) > 1 else ""

    def line(what: str, ages_s: Iterable[float]) -> LiveText:
        return LiveText.of(what, since_s=time.monotonic() - max(ages_s))

    if unborn := [host for host in by_node if host not in stages]:
        ages_s = [_age_s(by_node[host], by_node[host]["started_s"]) for host in unborn]
        return line(f"starting the launcher{on(unborn)}", ages_s)
    ranks = [
        (
            rank["doing"] if rank["doing"] in _DOING else "training",
            host,
            _age_s(by_node[host], rank["since_s"]),
            int(rank["rank"]),
        )
        for host, stage in stages.items()
        for rank in stage["ranks"]
    ]
    if not ranks:
        # Node 0 hears all others.
        first, stage = next(iter(stages.items()))
        what = f"starting ranks{on(by_node)}"
        if missing := stage["hosts"]:
            what = f"waiting for the launcher{on(missing)} to reach {first}"
        return line(what, [_age_s(by_node[first], stage["since_s"])])
    phases = sorted({doing for doing, *_ in ranks}, key=list(_DOING).index)
    those = [(host, age_s) for doing, host, age_s, _ in ranks if doing == phases[0]]
    hosts = dict.fromkeys(host for host, _ in those)
    said = line(f"{_DOING[phases[0]]}{on(hosts)}", (age_s for _, age_s in those))
    parts = [LivePart(part.text, 1) for part in said.parts]
    for phase in phases[1:]:
        numbers = sorted(number for doing, _, _, number in ranks if doing == phase)
        who = f"rank{'s' * (len(numbers) > 1)} {listed(str(number) for number in numbers)}"
        parts.append(LivePart(f"{who} {'running' if phase == 'training' else phase}", 0))
    return replace(said, parts=tuple(parts))


def _age_s(told: Mapping[str, Any], since_s: float | None) -> float:
    """How long ago something was, by the clock of the host that tells it."""
    now_s = float(told["now_s"])
    return max(0.0, now_s - (now_s if since_s is None else float(since_s)))


@contextlib.contextmanager
def drawing(live: Callable[[LiveText], None], line: Callable[[], LiveText]) -> Iterator[None]:
    """Have a line drawn meanwhile, as it is at each moment. line: called from another thread."""

    def draw(over: threading.Event) -> None:
        while not over.wait(_DRAW_EVERY_S):
            live(line())

    with _beside(draw):
        yield
    live(LiveText())


@contextlib.contextmanager
def saying(note: Callable[[str], None], line: Callable[[], LiveText]) -> Iterator[None]:
    """Have a line said now and then meanwhile: where nothing can be drawn over itself."""

    def say(over: threading.Event) -> None:
        shown = LiveText()
        said_s = seen_s = time.monotonic()
        while not over.wait(_LOOK_AT_LINE_EVERY_S):
            line_now, now_s = line(), time.monotonic()
            if line_now != shown:
                shown, seen_s = line_now, now_s
            if shown.parts and now_s - said_s >= SAY_EVERY_S:
                said_s = now_s
                since_s = seen_s if line_now.since_s is None else line_now.since_s
                note(line_now.fit(_NOTE_CELLS, age_s=now_s - since_s))

    with _beside(say):
        yield


@contextlib.contextmanager
def _beside(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have a thread act meanwhile, until the event that it gets."""
    over = threading.Event()
    thread = threading.Thread(target=act, args=(over,), name="launch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)

"""What a host's program does about its ranks, without any."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.agent.jobfolder import JobFolder
from yoked.diagnosis.vitals import Vitals
from yoked.launch.bootstrap import host
from yoked.launch.bootstrap.coordinator import EndGeneration, HeldUp, RanksOver, StopAsked
from yoked.launch.bootstrap.host import HostProgram, Signals
from yoked.launch.bootstrap.job import Node
from yoked.launch.bootstrap.outcome import Attempt, Decision, Failure, RunOutcome
from yoked.launch.bootstrap.watch import Told, TraceWish

STOPPED = Failure("alpha", 0, "stopped for 3 s", 1.0, rank=1, cause="rank-stopped", found=True)
STILL = replace(STOPPED, what="stopped for 4 s", time_s=2.0)
LOCKED = replace(STOPPED, rank=0, cause="rank-stands")


class Ranks:
    """Those of a generation. freed: how often they were told to leave their collectives."""

    def __init__(self) -> None:
        self.freed = 0
        self.store_port = None
        self.over = False
        self.ended_well = (0, 1)
        self.calls = ()

    def failures(self, memory_of: object) -> tuple[Failure, ...]:
        return ()

    def free(self) -> None:
        self.freed += 1

    def close(self) -> None:
        """Its ranks are over already."""


class Watch:
    """Finds what it is told to."""

    failure: Failure | None = None
    wanted_trace: TraceWish | None = None
    take: Callable[[Told, float], None]

    def __init__(self) -> None:
        self.looks: list[bool] = []
        self.ended: list[bool] = []
        self.gave_up = False
        self.warning: str | None = None

    def is_asked(self, wish: str) -> bool:
        return False

    def turn(self, ranks: object, now_s: float, *, last: bool) -> Vitals:
        self.looks.append(last)
        return Vitals(attempt=0, number=1)

    def memory_of(self, rank: int) -> None: ...

    def give_up(self) -> None:
        self.gave_up = True

    def hold(self) -> None: ...

    def end(self, *, finished: bool, failure: object = None) -> None:
        self.ended.append(finished)
        self.warning = "its ranks share nothing"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    monkeypatch.setattr(host, "LocalRanks", lambda *_, **__: Ranks())
    monkeypatch.setattr(host, "Watch", lambda *_: found)
    return found


def program(folder: Path, *, ends_held_up: bool) -> HostProgram:
    """With its ranks started."""
    nodes = (Node("alpha", "127.0.0.1", 2),)
    job = made_up_job(folder, nodes=nodes, restarts=1, ends_held_up=ends_held_up)
    signals: Any = SimpleNamespace(events=SimpleQueue())
    notifier: Any = SimpleNamespace(held_up=lambda failure: None, warned=[])
    notifier.warn = notifier.warned.append
    found = HostProgram(job, signals, notifier)
    found._events.get()  # that it has joined
    found._start(0, 0)
    return found


def after(of: HostProgram, watch: Watch, *found: Failure | None) -> tuple[int, list[Any]]:
    """How often the ranks were freed, and what was told, when these were found one by one."""
    for failure in found:
        watch.failure = failure
        of._look()
    told = [of._events.get() for _ in range(of._events.qsize())]
    return cast(Ranks, of._ranks).freed, told


def test_ranks_are_freed_once_for_each_cause_however_long_it_stays(
    tmp_path: Path, watch: Watch
) -> None:
    of = program(tmp_path, ends_held_up=True)

    first = after(of, watch, None, STOPPED, STILL, LOCKED, STILL)
    of._start(1, 0)
    again = after(of, watch, STOPPED, STILL)

    assert first == (2, [HeldUp(0, STOPPED), HeldUp(0, LOCKED)])
    assert again == (1, [HeldUp(1, STOPPED)])


def test_that_the_ranks_are_over_is_told_however_much_the_others_tell(
    tmp_path: Path, watch: Watch
) -> None:
    of = program(tmp_path, ends_held_up=True)
    seen = Told(1, Vitals(attempt=0, number=1))
    cast(Ranks, of._ranks).over = True
    taken: list[Told] = []

    def take(told: Told, now_s: float) -> None:
        taken.append(told)

    def answer(vitals: Vitals) -> None:
        # Two others have no rank left, either, and tell what they see as often.
        for _ in range(2):
            of._events.put(seen)

    watch.take = take
    of._control = cast(Any, SimpleNamespace(tell=answer))
    found = of._next_event()

    assert found == RanksOver(0, (), (0, 1), ())
    assert taken == [seen, seen]


def test_ranks_of_a_run_that_waits_are_left_alone(tmp_path: Path, watch: Watch) -> None:
    of = program(tmp_path, ends_held_up=False)

    assert after(of, watch, STOPPED, STILL) == (0, [])


def test_what_ended_an_attempt_is_told_before_the_next_one_begins(
    tmp_path: Path, watch: Watch
) -> None:
    of = program(tmp_path, ends_held_up=False)
    ends = [Decision(n, "failed", STOPPED, again=n < 2) for n in (0, 1, 2)]

    for end in ends:
        of._carry_out(EndGeneration(end))

    told = JobFolder(tmp_path).read("earlier.json")["attempts"]
    # The last one is in outcome.json.
    assert [each["attempt"] for each in told] == [0, 1]
    assert {each["failure"]["what"] for each in told} == {STOPPED.what}


def test_the_others_hear_of_a_host_whose_diagnosis_has_a_bug(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = program(tmp_path, ends_held_up=True)
    told: list[Vitals] = []
    of._control = cast(Any, SimpleNamespace(tell=told.append))

    def turn(ranks: object, now_s: float, *, last: bool) -> Vitals:
        if not watch.gave_up:
            raise LookupError("a bug")
        return Vitals(attempt=0, number=2)

    monkeypatch.setattr(watch, "turn", turn)
    of._look()
    of._look()

    assert told == [Vitals(attempt=0, number=2)]


def test_what_a_person_asks_for_is_acknowledged_at_once() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    told: list[Any] = []
    try:
        signals = Signals(told.append)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert told == ["interrupted", "stopped"]
    assert [signals.events.get() for _ in told] == [StopAsked(stop) for stop in told]


def test_what_ranks_left_at_their_end_is_looked_at_before_the_run_ends(
    tmp_path: Path, watch: Watch
) -> None:
    of = program(tmp_path, ends_held_up=False)
    ranks = cast(Any, of._ranks)
    before = of._next_event()

    ranks.over = True
    event = of._next_event()
    of._carry_out(EndGeneration(Decision(0, "finished", None, again=False)))

    assert before is None
    assert event == RanksOver(0, (), (0, 1))
    assert (watch.looks, watch.ended) == ([False, True], [True])
    assert cast(Any, of._notifier).warned == ["its ranks share nothing"]


def test_who_is_not_looking_is_told_also_where_the_outcome_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = RunOutcome("failed", (Attempt(0, 1.0, 2.0, STOPPED),))
    told: list[object] = []
    notifier = SimpleNamespace(ended=told.append, close=lambda: told.append("closed"))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    stand_ins: dict[str, object] = {
        "Signals": lambda: None,
        "read_job": lambda path: made_up_job(tmp_path),
        "Notifier": lambda job: notifier,
        "Orphans": lambda launch_id: None,
        "kept_for_ranks": contextlib.nullcontext,
        "HostProgram": lambda *_: SimpleNamespace(run=lambda: ended),
        "write_exit": full,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(host, name, stand_in)

    with pytest.raises(OSError, match="No space left"):
        host.main(["job.json"])

    assert told == [ended, "closed"]

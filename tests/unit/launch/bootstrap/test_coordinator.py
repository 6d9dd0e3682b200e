"""What the hosts of a run decide, from what each sees and hears, in whatever order it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.errors import HostError
from yoked.launch.bootstrap.coordinator import (
    FAREWELL_S,
    REPORT_S,
    SAVING_S,
    SILENT_S,
    Beat,
    Command,
    Coordinator,
    CutOff,
    EndGeneration,
    EndRanks,
    Event,
    Finish,
    HostFailed,
    Interrupt,
    Joined,
    Left,
    RankFailed,
    RanksOver,
    StartGeneration,
    StopAsked,
)
from yoked.launch.bootstrap.job import Job, Node
from yoked.launch.bootstrap.notice import CONNECT_S, SILENCE_S, Notice
from yoked.launch.bootstrap.outcome import HOST_LOST, Decision, Failure, RunOutcome

NAMES = ("alpha", "beta", "gamma")
GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"
KILLED = Failure("beta", 1, "killed by SIGKILL", 13.0, rank=1, signal="SIGKILL")
# By its host's clock before its cause.
ECHO = Failure("gamma", 2, GLOO, 10.0, rank=2, kind="RuntimeError")
STRANGE = Failure("beta", 1, "rank 0 did not prove itself", 11.0, rank=1, kind="MeetingError")
LOST = HostError("the connection was lost", fix="look at alpha")


def job(node: int = 0, *, hosts: int = 3, restarts: int = 0) -> Job:
    nodes = tuple(Node(name, "192.0.2.1", 1) for name in NAMES[:hosts])
    return made_up_job(
        Path("/job"), node_rank=node, nodes=nodes, control_port=41, restarts=restarts
    )


class Host:
    """A coordinator, the time, and all that it commanded."""

    def __init__(self, node: int = 0, **more: Any) -> None:
        self.now_s = 1000.0
        self.coordinator = Coordinator(job(node, **more), self.now_s)
        self.commands: list[Command] = []

    def on(self, *events: Event | None, later_s: float = 0.0) -> list[Command]:
        self.now_s += later_s
        found = [one for event in events for one in self.coordinator.on(event, self.now_s)]
        self.commands += found
        return found

    @property
    def decision(self) -> Decision:
        """The last one."""
        ended = [one for one in self.commands if isinstance(one, EndGeneration)]
        return ended[-1].decision


def running(node: int = 0, **more: Any) -> Host:
    """A host whose ranks run, as all ranks do."""
    host = Host(node, **more)
    others = [other for other in range(more.get("hosts", 3)) if other != node]
    host.on(Joined(), *(Beat(other, Notice(attempt=0)) for other in others))
    assert host.commands == [StartGeneration(0, 0)]
    return host


def reported(*failures: Failure, attempt: int = 0, **more: Any) -> Notice:
    return Notice(attempt=attempt, failing=bool(failures), report=failures, **more)


def agreed(*reports: tuple[Failure, ...], restarts: int = 0, generation: int = 0) -> Host:
    """Node 0 after each node has reported, node by node."""
    host = running(restarts=restarts)
    report_all(host, generation, *reports)
    return host


def report_all(host: Host, generation: int, *reports: tuple[Failure, ...]) -> list[Command]:
    own, *others = reports
    return host.on(
        RanksOver(generation, own),
        *(Beat(n, reported(*one, attempt=generation)) for n, one in enumerate(others, 1)),
    )


def test_ranks_start_once_all_hosts_have_come_and_end_well_on_all() -> None:
    host = Host()
    assert host.on(None, Joined(), Beat(1, Notice())) == []

    assert host.on(Beat(2, Notice())) == [StartGeneration(0, 0)]
    host.on(Beat(1, reported()), Beat(2, reported()))
    assert host.on(RanksOver(0, ())) == [EndGeneration(Decision(0, "finished", None, False))]
    assert host.on(Beat(1, reported(leaving=True)), Left(2)) == [
        Finish(RunOutcome("finished", host.commands[-1].outcome.attempts))
    ]


def test_a_failure_ends_the_generation_it_belongs_to_and_no_other() -> None:
    host = agreed((), (KILLED,), (), restarts=1)
    assert host.commands[-1] == StartGeneration(1, 1)

    assert host.on(Beat(1, Notice(attempt=0, failing=True))) == []
    assert host.on(RankFailed(0)) == []
    assert host.on(Beat(1, Notice(attempt=1, failing=True))) == [EndRanks()]


def test_a_rank_that_fails_here_ends_the_others_here_and_is_told_of() -> None:
    host = running()

    assert host.on(RankFailed(0)) == [EndRanks()]
    assert host.coordinator.notice == Notice(attempt=0, failing=True)
    assert host.on(None) == []


def test_a_stop_of_another_host_ends_ranks_and_an_interrupt_lets_them_save() -> None:
    assert running().on(Beat(1, Notice(attempt=0, stop="stopped"))) == [EndRanks()]
    host = running()

    assert host.on(Beat(1, Notice(attempt=0, stop="interrupted"))) == [Interrupt()]
    assert host.on(Beat(2, Notice(attempt=0, failing=True))) == []
    assert host.on(None, later_s=SAVING_S - 1) == []
    assert host.on(None, later_s=2) == [EndRanks()]


def test_of_two_wishes_the_sterner_counts() -> None:
    host = running()

    assert host.on(StopAsked("interrupted")) == [Interrupt()]
    assert host.on(StopAsked("stopped")) == [EndRanks()]
    assert host.coordinator.notice.stop == "stopped"


def test_a_host_that_is_silent_too_long_ends_the_run_and_one_that_blinks_does_not() -> None:
    host = running()

    assert host.on(None, Beat(1, Notice(attempt=0)), later_s=SILENCE_S - 1) == []
    assert host.on(None, later_s=2) == [EndRanks()]


def test_a_host_that_has_not_come_is_waited_for_and_then_named(snapshot: SnapshotAssertion) -> None:
    host = Host()
    host.on(Joined(), Beat(1, Notice(attempt=0)))
    assert host.on(Beat(1, Notice(attempt=0)), later_s=CONNECT_S - 1) == []

    host.on(Beat(1, Notice(attempt=0)), later_s=2)
    assert host.coordinator.notice.failing
    host.on(Beat(1, reported()))

    assert host.decision.failure is not None
    assert host.decision.failure.headline == snapshot
    assert "port 41" in host.decision.failure.fix[0]


DIED = Failure(
    "beta",
    1,
    "its launcher was killed by SIGKILL",
    9.0,
    kind="HostProgramEnded",
    cause="launcher-died",
)


@pytest.mark.parametrize("came", [(), (2,)], ids=["nobody came", "gamma came"])
def test_node_0_ends_the_start_when_it_is_told_that_a_host_never_comes(
    came: tuple[int, ...],
) -> None:
    host = Host()
    host.on(Joined(), *(Beat(node, Notice()) for node in came))

    host.on(HostFailed(DIED))
    host.on(*(Beat(node, reported()) for node in came), later_s=0.1)

    assert host.decision == Decision(0, "failed", DIED, again=False)
    assert not any(isinstance(one, StartGeneration) for one in host.commands)


def test_a_host_that_has_not_reached_node_0_ends_too_when_it_is_told() -> None:
    host = Host(2)

    host.on(HostFailed(DIED))

    assert host.decision == Decision(0, "failed", DIED, again=False)
    assert isinstance(host.commands[-1], Finish)


def test_a_host_that_comes_when_the_others_have_given_up_starts_no_rank() -> None:
    early, late = Host(1, hosts=2), Host(0, hosts=2)
    early.on(Joined(), None)
    early.on(None, later_s=CONNECT_S + 1)

    late.on(Joined(), Beat(1, early.coordinator.notice), Left(1))

    assert early.coordinator.notice.report == (late.decision.failure,)
    assert not any(isinstance(one, StartGeneration) for one in late.commands)


def test_a_host_that_leaves_before_another_has_come_ends_the_wait() -> None:
    host = Host()
    host.on(Joined(), Beat(1, Notice(attempt=0)))

    host.on(Left(1))

    assert host.decision.failure is not None
    assert host.decision.failure.host == "beta"


def test_a_generation_is_settled_when_all_reported_or_the_rest_is_silent() -> None:
    host = running()
    host.on(RanksOver(0, ()), Beat(1, reported(ECHO)))

    assert host.on(Beat(1, reported(ECHO)), later_s=SILENT_S - 1) == []
    host.on(Beat(1, reported(ECHO)), later_s=2)

    assert host.decision.failure is not None
    assert (host.decision.failure.host, host.decision.failure.kind) == ("gamma", HOST_LOST)


def test_silence_settles_nothing_while_the_others_still_train() -> None:
    host = running()

    host.on(RanksOver(0, ()), Beat(1, reported()))

    assert host.on(Beat(1, reported()), later_s=SILENT_S + 1) == []


def test_a_connection_that_ends_names_its_host_at_once(snapshot: SnapshotAssertion) -> None:
    host = running()

    assert host.on(Left(2)) == [EndRanks()]
    host.on(RanksOver(0, ()), Beat(1, reported(ECHO)))

    assert host.decision.failure is not None
    assert host.decision.failure.headline == snapshot


def test_a_lost_connection_to_node_0_is_the_end_of_its_host() -> None:
    host = running(1)

    assert host.on(CutOff(LOST)) == [EndRanks()]
    *_, finish = host.on(RanksOver(0, ()))

    assert isinstance(finish, Finish)
    cause = finish.outcome.failure
    assert cause is not None
    assert (cause.host, cause.kind, cause.fix) == ("alpha", HOST_LOST, ("look at alpha",))


def test_a_connection_that_is_lost_after_all_reported_changes_nothing() -> None:
    host = running(1)

    host.on(RanksOver(0, ()), Beat(0, reported()), Beat(2, reported()), CutOff(LOST))

    assert host.decision == Decision(0, "finished", None, again=False)


def test_a_node_0_that_was_never_reached_is_the_trouble_of_this_host(
    snapshot: SnapshotAssertion,
) -> None:
    problem = HostError("beta did not reach alpha", fix="yoked doctor")
    host = Host(1)

    host.on(CutOff(problem))

    cause = host.decision.failure
    assert cause is not None
    assert (cause.host, cause.kind, cause.what) == snapshot


def test_the_other_hosts_take_over_what_node_0_decided() -> None:
    host = running(1)
    decision = Decision(0, "failed", KILLED, again=True)
    host.on(RanksOver(0, (ECHO,)))

    commands = host.on(Beat(0, reported(attempt=0, decision=decision)))

    assert commands == [EndGeneration(decision), StartGeneration(1, 1)]
    assert host.coordinator.notice.attempt == 1


def test_without_a_word_of_node_0_a_host_decides_by_itself() -> None:
    host = running(1)
    host.on(RanksOver(0, (KILLED,)))

    assert host.on(None, later_s=REPORT_S + SILENT_S - 0.1) == []
    host.on(None, later_s=0.2)

    assert host.decision == Decision(0, "failed", KILLED, again=False)


def test_ranks_that_cannot_be_killed_are_told_of_and_not_started_again(
    snapshot: SnapshotAssertion,
) -> None:
    host = running(hosts=1, restarts=3)

    assert host.on(RankFailed(0)) == [EndRanks()]
    host.on(None, later_s=REPORT_S + 1)

    assert host.decision.failure is not None
    assert host.decision.failure.what == snapshot
    assert (host.decision.status, host.decision.again) == ("failed", False)


def test_node_0_stays_for_those_that_may_not_have_read_how_it_ended() -> None:
    host = agreed((), (), ())
    host.on(Beat(1, reported(leaving=True)))
    assert not any(isinstance(one, Finish) for one in host.commands)

    assert any(isinstance(one, Finish) for one in host.on(None, later_s=FAREWELL_S + 0.1))


# A wish to stop before there is anything to save.


def test_a_wish_from_before_this_host_joined_starts_no_rank_and_reaches_the_others() -> None:
    early, late = Host(1, hosts=2), Host(0, hosts=2)
    early.on(StopAsked("interrupted"))

    assert early.on(Joined()) == []
    assert early.coordinator.notice == Notice(attempt=0, report=(), stop="interrupted")
    late.on(Joined(), Beat(1, early.coordinator.notice))

    assert late.decision == Decision(0, "interrupted", None, again=False)


def test_a_host_that_waits_for_another_can_be_interrupted() -> None:
    host = Host(0, hosts=2)
    host.on(Joined())

    host.on(StopAsked("interrupted"))

    assert host.decision == Decision(0, "interrupted", None, again=False)


def test_a_host_that_hears_nobody_stops_soon_after_it_was_asked_to() -> None:
    host = Host(1)
    host.on(StopAsked("stopped"))

    assert host.on(None, later_s=FAREWELL_S - 1) == []
    host.on(None, later_s=2)

    assert host.decision == Decision(0, "stopped", None, again=False)


# What came of a generation.


def test_a_failure_is_repeated_where_generations_are_left() -> None:
    assert agreed((), (KILLED,), (ECHO,), restarts=1).decision.again
    assert not agreed((), (KILLED,), (ECHO,)).decision.again


@pytest.mark.parametrize(
    "cause", ["collective-mismatch", "disk-full", "data-ran-out", "loss-not-finite"]
)
def test_what_another_attempt_changes_nothing_about_is_not_repeated(cause: str) -> None:
    assert not agreed((), (replace(KILLED, cause=cause),), (), restarts=3).decision.again


def test_an_exception_is_repeated_once_and_not_where_it_comes_again_at_the_same_line() -> None:
    raised = replace(KILLED, signal=None, kind="ValueError", cause="exception", at="a.py:3 in main")
    host = agreed((), (raised,), (), restarts=3)
    assert host.decision.again

    host.on(*(Beat(node, Notice(attempt=1)) for node in (1, 2)))
    report_all(host, 1, (), (raised,), ())

    assert not host.decision.again


def test_weights_that_part_are_given_one_attempt_more() -> None:
    apart = replace(KILLED, signal=None, kind="WeightsApartError", cause="weights-apart")
    host = agreed((), (apart,), (), restarts=3)
    assert host.decision.again

    host.on(*(Beat(node, Notice(attempt=1)) for node in (1, 2)))
    report_all(host, 1, (), (replace(apart, rank=0),), ())

    assert not host.decision.again


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_meeting_of_ranks_that_fails_is_repeated_once_more_than_was_asked_for(
    restarts: int,
) -> None:
    host = running(restarts=restarts)

    generation = 0
    while not host.commands or isinstance(host.commands[-1], StartGeneration):
        report_all(host, generation, (), (STRANGE,), (ECHO,))
        generation += 1

    assert generation == 2 + restarts
    # None of them had begun, as the ranks count it.
    assert [one.restarts for one in host.commands if isinstance(one, StartGeneration)] == [0] * (
        2 + restarts
    )


def test_a_kill_while_ranks_meet_is_not_repeated() -> None:
    assert not agreed((), (STRANGE, KILLED), (ECHO,)).decision.again


@pytest.mark.parametrize(
    "obeyed",
    [
        replace(KILLED, signal=None, kind="KeyboardInterrupt"),
        replace(KILLED, signal="SIGINT"),
        replace(KILLED, signal="SIGTERM"),
        replace(KILLED, signal=None, kind="SystemExit", what="exit status 130"),
        replace(KILLED, signal=None, exit_code=130),
        ECHO,
    ],
)
def test_ranks_that_end_as_asked_do_not_fail_a_stop(obeyed: Failure) -> None:
    host = running(restarts=1)
    host.on(StopAsked("interrupted"))

    report_all(host, 0, (), (obeyed,), ())

    assert host.decision == Decision(0, "interrupted", None, again=False)


def test_trouble_of_a_ranks_own_is_told_of_after_a_stop() -> None:
    full = replace(KILLED, signal=None, kind="OSError", what="No space left on device")
    host = running(restarts=1)
    host.on(StopAsked("interrupted"))

    report_all(host, 0, (), (full,), (ECHO,))

    assert host.decision == Decision(0, "interrupted", full, again=False)


# Any order of events, on all hosts of a run at once.


@dataclass
class Place:
    """A host in a run of several: its coordinator, its ranks, and its inbox by sender."""

    host: Host
    generation: int | None = None
    told: bool = False
    failures: tuple[Failure, ...] = ()
    # The generations whose ranks did not fail.
    done: set[int] = field(default_factory=set)
    cut: bool = False
    heard: set[int] = field(default_factory=set)
    said: Notice = field(default_factory=Notice)
    inbox: dict[int, list[Event]] = field(default_factory=dict)
    finished: RunOutcome | None = None


class Run:
    """Hosts that hear each other late, in bursts or not at all, while ranks fail and people stop.

    Every event is followed by a check of what must never be.
    """

    def __init__(self, hosts: int, restarts: int) -> None:
        self.places = [Place(Host(node, hosts=hosts, restarts=restarts)) for node in range(hosts)]
        self.now_s = 1000.0
        self.dark = False
        # The generations in which a rank was killed: what comes then only echoes it.
        self.killed: set[int] = set()

    def tell(self, node: int, event: Event | None) -> None:
        place = self.places[node]
        place.host.now_s = self.now_s
        if isinstance(event, Beat) and not place.finished:
            place.heard.add(event.node)
        commands = place.host.on(event)
        notice = place.host.coordinator.notice
        if notice != place.said:
            place.said = notice
            self.send(node, Beat(node, notice))
        for command in commands:
            assert place.finished is None, f"{command} after the end of {NAMES[node]}"
            self.obey(node, place, command)

    def send(self, node: int, event: Event) -> None:
        for other in self.others(node):
            self.places[other].inbox.setdefault(node, []).append(event)

    def obey(self, node: int, place: Place, command: Command) -> None:
        if isinstance(command, StartGeneration):
            assert place.generation is None, "ranks are started beside ranks"
            place.generation, place.told, place.failures = command.number, False, ()
            generations = {one.generation for one in self.places} - {None}
            assert generations == {command.number}, "two generations run"
        elif isinstance(command, EndRanks | Interrupt):
            place.told = True
        elif isinstance(command, Finish):
            # The end of its connection comes after its last word.
            self.send(node, Left(node) if node else CutOff(LOST))
            place.finished = command.outcome

    def others(self, node: int) -> Iterator[int]:
        """Those that a node can speak to."""
        if not self.places[node].cut:
            for other, place in enumerate(self.places):
                if other != node and not place.cut and not place.finished:
                    yield other

    # What may happen.

    def join(self, node: int) -> None:
        if not self.places[node].cut:
            there = node == 0 or not self.places[0].finished
            self.tell(node, Joined() if there else CutOff(LOST))

    def hear(self, node: int) -> None:
        """One word of each sender."""
        for waiting in self.places[node].inbox.values():
            if waiting:
                self.tell(node, waiting.pop(0))

    def kill(self, node: int) -> None:
        """A rank is killed, the first of this generation."""
        place = self.places[node]
        if place.generation is not None and not place.told and place.generation not in self.killed:
            self.killed.add(place.generation)
            self.fail(place, replace(KILLED, host=NAMES[node], node=node))

    def echo(self, node: int) -> None:
        """A rank complains of one that was killed."""
        place = self.places[node]
        if place.generation in self.killed and not place.told and not place.failures:
            self.fail(place, replace(ECHO, host=NAMES[node], node=node))

    def fail(self, place: Place, failure: Failure) -> None:
        assert place.generation is not None
        place.failures = (failure,)
        self.tell(failure.node, RankFailed(place.generation))

    def end(self, node: int) -> None:
        """The ranks of a host end: all is done, or they were told to."""
        place = self.places[node]
        done = place.generation not in self.killed
        if place.generation is not None and (place.told or done):
            generation, place.generation = place.generation, None
            if not place.failures:
                place.done.add(generation)
            self.tell(node, RanksOver(generation, place.failures))

    def interrupt(self, node: int) -> None:
        self.tell(node, StopAsked("interrupted"))

    def stop(self, node: int) -> None:
        self.tell(node, StopAsked("stopped"))

    def cut(self, node: int) -> None:
        """A host is cut off; where it is node 0, all are."""
        cut = range(1, len(self.places)) if node == 0 else [node]
        for each in cut:
            if not self.places[each].cut:
                self.send(each, Left(each))
                self.places[each].cut = True
                self.tell(each, CutOff(LOST))

    def tick(self, node: int) -> None:
        """All hear all, as they do five times a second."""
        self.pass_time(0.2)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for node, place in enumerate(self.places):
            if place.said.attempt >= 0 and not place.finished:
                self.send(node, Beat(node, place.said))
        for node, place in enumerate(self.places):
            while any(place.inbox.values()):
                self.hear(node)
            self.tell(node, None)

    def darken(self, node: int) -> None:
        """Nobody hears anybody for a time in which all give up."""
        self.dark = True
        self.now_s += SILENCE_S + 1
        for each in range(len(self.places)):
            self.tell(each, None)

    def settle(self) -> None:
        """Let all come to an end, as it would when nothing more happens."""
        for node in range(len(self.places)):
            self.join(node)
        for _ in range(600):
            self.pass_time(0.5)
            for node in range(len(self.places)):
                self.end(node)
        assert all(place.finished for place in self.places), "a host goes on for ever"


ACTS = st.sampled_from(
    ["join", "hear", "kill", "echo", "end", "interrupt", "stop", "cut", "tick", "darken"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3), st.integers(0, 2), st.lists(st.tuples(ACTS, st.integers(0, 2)), max_size=40)
)
def test_in_any_order_one_generation_runs_one_outcome_stands_and_the_first_cause_is_named(
    hosts: int, restarts: int, acts: list[tuple[str, int]]
) -> None:
    run = Run(hosts, restarts)
    for act, node in acts:
        getattr(run, act)(node % hosts)
    run.settle()

    outcomes = [place.finished for place in run.places if not place.cut or hosts == 1]
    met = all(len(place.heard) == hosts - 1 for place in run.places)
    if met and not run.dark:
        told = {
            (one.status, tuple(each.failure for each in one.attempts)) for one in outcomes if one
        }
        assert len(told) <= 1, "hosts that hear each other disagree"
    for outcome in outcomes:
        assert outcome is not None
        if outcome.status == "finished":
            assert all(outcome.attempts[-1].attempt in place.done for place in run.places)
        for attempt in outcome.attempts:
            if attempt.attempt in run.killed and attempt.failure and not run.dark:
                assert attempt.failure.kind in (None, HOST_LOST)

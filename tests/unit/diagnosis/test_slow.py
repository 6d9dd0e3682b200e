"""Runs that get on, and slower than they did: who, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.unit.diagnosis.made_up import PERIOD_S, Told, in_collective, link, rank, recorded

from yoked.diagnosis.cause import Cause
from yoked.diagnosis.history import Pace, Place, RankPace, RunHistory, Step
from yoked.diagnosis.pace import all_do_more, learn, pace_now, times_slower
from yoked.diagnosis.rules import causes
from yoked.diagnosis.slow import held_back, slow_downs, slow_hosts
from yoked.diagnosis.vitals import Machine, Vitals
from yoked.diagnosis.words import words_of


@dataclass
class Host:
    """How a host of the run gets on; cpu, delay: of each second."""

    cpu: float = 0.8
    delay: float = 0.0
    bytes_per_s: float = 50e6
    lost: float = 0.0
    rtt_s: float = 3e-4
    unsent: int = 0
    machine: Machine | None = None


class Run:
    """Two hosts whose figures grow by what is said of them."""

    def __init__(self) -> None:
        self.told = Told()
        self.hosts = [Host(), Host()]
        self.steps = 0.0
        self.steps_per_s = 2.0
        self.connections = 2
        self.sums = [[0.0, 0.0, 0.0, 0.0] for _ in self.hosts]
        # Of each step: its seconds, and each host's of a core.
        self.taken: list[tuple[float, list[float]]] = []
        self.ended_s = self.told.now_s
        self.phase = "training"
        self.changed_s = 0.0

    def evaluate(self, looks: int) -> None:
        """No step is taken meanwhile."""
        rate, self.steps_per_s, self.phase = self.steps_per_s, 0.0, "evaluating"
        for _ in range(looks):
            self.look()
        self.steps_per_s, self.phase = rate, "training"

    def look(self) -> list[Cause]:
        before = int(self.steps)
        self.steps += self.steps_per_s * PERIOD_S
        if taken := int(self.steps) - before:
            ended_s = self.told.now_s + PERIOD_S - self.steps % 1 / self.steps_per_s
            took_s = (ended_s - self.ended_s) / taken
            self.taken += [(took_s, [host.cpu * took_s for host in self.hosts])] * taken
            self.ended_s = ended_s
        seen = []
        for node, (host, sums) in enumerate(zip(self.hosts, self.sums, strict=True)):
            grown = (host.cpu, host.delay, host.bytes_per_s, host.lost * host.bytes_per_s / 1500)
            for at, each in enumerate(grown):
                sums[at] += each * PERIOD_S
            seen.append(
                Vitals(
                    0,
                    0,
                    (
                        rank(
                            node,
                            cpu_s=sums[0],
                            delayed_s=sums[1],
                            recorded=recorded(
                                steps=int(self.steps),
                                age_s=0.0,
                                stepped_age_s=self.told.now_s + PERIOD_S - self.ended_s,
                                step_s=tuple(took_s for took_s, _ in self.taken[-32:]),
                                step_cpu_s=tuple(cpu_s[node] for _, cpu_s in self.taken[-32:]),
                                phase=self.phase,
                            ),
                        ),
                    ),
                    links=(
                        link(
                            1 - node,
                            connections=self.connections,
                            sent_bytes=int(sums[2]),
                            segments=int(sums[2] / 1500),
                            retransmitted=int(sums[3]),
                            rtt_s=host.rtt_s,
                            unsent_bytes=host.unsent,
                        ),
                    ),
                    machine=host.machine,
                )
            )
        self.told.look(*seen)
        return causes(self.told.history)

    def steps_until_told(
        self, change: Callable[[Run], None], after: int = 60
    ) -> tuple[Cause, float]:
        """The first cause after the change, and how many steps were taken meanwhile."""
        for _ in range(after):
            assert self.look() == []
        change(self)
        self.changed_s = self.told.now_s
        before = self.steps
        for _ in range(120):
            if found := self.look():
                return found[0], self.steps - before
        raise AssertionError("nothing was told")


def slower(run: Run, *, times: float = 2.0) -> None:
    run.steps_per_s /= times
    for host in run.hosts:
        host.cpu /= times
        host.bytes_per_s /= times


def test_a_rank_that_shares_its_core_is_named() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].delay = 0.5

    cause, steps = Run().steps_until_told(change)

    assert (cause.code, cause.rank, cause.nodes) == ("cpu-slow", 1, (1,))
    assert cause.params["delayed"] is True
    assert steps <= 10


def slow_after(run: Run, looks: int, change: Callable[[Run], None]) -> float:
    """Run well, then slower for so many looks: the difference to since when it is said to be."""
    run.steps_until_told(change)
    began_s = run.changed_s
    for _ in range(looks):
        run.look()
    (cause,) = run.look()
    return cause.since_s - (run.told.now_s - began_s)


@pytest.mark.parametrize("looks", [0, 20, 200])
def test_since_when_it_is_slow_is_when_it_became_so(looks: int) -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].delay = 0.5

    # A step of the slow ones takes 1 s; the one that was under way may count with them.
    assert abs(slow_after(Run(), looks, change)) <= 1.0


def test_an_evaluation_is_no_part_of_a_slow_down() -> None:
    run = Run()
    for _ in range(60):
        run.look()
    slower(run)
    run.hosts[1].delay = 0.5
    run.evaluate(looks=40)
    ended_s = run.told.now_s
    while not (found := run.look()):
        pass

    assert found[0].since_s == pytest.approx(run.told.now_s - ended_s, abs=1.0)


def test_what_was_slow_before_a_stop_is_not_slow_after_it() -> None:
    run = Run()
    for _ in range(60):
        run.look()
    slower(run)
    run.hosts[1].delay = 0.5
    assert any(run.look() for _ in range(12))
    run.evaluate(looks=40)
    slower(run, times=0.5)
    run.hosts[1].delay = 0.0

    assert [run.look() for _ in range(20)] == [[]] * 20


def test_a_second_slow_down_has_a_beginning_of_its_own() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].delay = 0.5

    run = Run()
    run.steps_until_told(change)
    slower(run, times=0.5)
    run.hosts[1].delay = 0.0
    for _ in range(20):
        run.look()

    assert abs(slow_after(run, 5, change)) <= 1.0


def more_for_the_same(run: Run) -> None:
    """Rank 0 needs more of its core for the same work."""
    slower(run)
    run.hosts[0].cpu = 0.9


def test_a_processor_with_a_lower_clock_is_named() -> None:
    def change(run: Run) -> None:
        more_for_the_same(run)
        run.hosts[0].machine = replace(WELL, clock_hz=1.2e9)

    run = Run()
    run.hosts[0].machine = WELL
    cause, steps = run.steps_until_told(change)

    assert (cause.code, cause.rank) == ("cpu-slow", 0)
    assert cause.params["delayed"] is False
    assert steps <= 10


def test_a_processor_that_is_slower_without_a_reason_is_named_after_ten_seconds() -> None:
    run = Run()
    cause, _ = run.steps_until_told(more_for_the_same)

    assert (cause.code, cause.rank) == ("cpu-slow", 0)
    assert 10.0 <= run.told.now_s - run.changed_s <= 15.0


def test_a_host_is_looked_at_more_closely_before_its_rank_is_named() -> None:
    run = Run()
    for _ in range(60):
        assert run.look() == []
    assert slow_hosts(run.told.history, []) == set()
    more_for_the_same(run)
    for _ in range(int(8.0 / PERIOD_S)):
        assert run.look() == []

    assert slow_hosts(run.told.history, []) == {0}
    assert slow_hosts(run.told.history, [Cause("cpu-slow", (1,), 1.0, "likely")]) == {0, 1}


def test_a_processor_that_is_slower_for_some_seconds_now_and_then_is_not_named() -> None:
    run = Run()
    for _ in range(4):
        for _ in range(60):
            assert run.look() == []
        more_for_the_same(run)
        for _ in range(int(8.0 / PERIOD_S)):
            assert run.look() == []
        slower(run, times=0.5)
        run.hosts[0].cpu = run.hosts[1].cpu


WELL = Machine(limited=0.0, clock_hz=3.3e9, most_hz=4.1e9, hot=0.0, on_battery=False)


@pytest.mark.parametrize(
    ("changes", "said", "fix"),
    [
        ({"limited": 0.8}, "a CPU limit of its container or service stops it in 80% of", "limit"),
        ({"stolen": 0.3}, "the host of this virtual machine takes 30% of its time", "machine"),
        (
            {"program": "cc1plus\x1b[2J", "program_cores": 3.1},
            "the program cc1plus\\x1b[2J uses 3.1 cores beside it",
            "renice",
        ),
        ({"hot": 3.0}, "its cores slow themselves down as they are hot", "fan"),
        ({"on_battery": True}, "it runs on its battery", "plug host1 in"),
        ({"clock_hz": 1.2e9}, "its clock is at 1.2 of 4.1 GHz, and was at 3.3", "powerprofilesctl"),
        ({"swapped_bytes_per_s": 12e6}, "it swaps, 12 MB/s", "smaller"),
        ({"program": "sshd", "program_cores": 0.1}, "another program, or a limit", "top"),
    ],
)
def test_what_holds_a_slow_rank_back_is_named(
    changes: dict[str, object], said: str, fix: str
) -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].delay = 0.5
        run.hosts[1].machine = replace(WELL, **changes)  # type: ignore[arg-type]

    run = Run()
    for host in run.hosts:
        host.machine = WELL
    cause, _ = run.steps_until_told(change)
    words = words_of(cause, ["host0", "host1"])

    assert words.what.partition("cores where it used ")[2].partition(": ")[2].startswith(said)
    assert fix in words.fix[0]


def test_what_was_so_before_the_slow_down_is_no_cause_of_it() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].delay = 0.5

    run = Run()
    for host in run.hosts:
        host.machine = Machine(0.5, 0.3, 1.2e9, 4.1e9, 1.0, on_battery=True)
    cause, _ = run.steps_until_told(change)

    assert words_of(cause, ["host0", "host1"]).what.endswith("another program, or a limit")


def test_a_small_program_is_no_cause_where_no_rank_waits_for_a_core() -> None:
    machine = Machine(program="browser", program_cores=0.5)

    assert held_back(None, machine, delayed=False) == {}
    assert "program" in held_back(None, machine, delayed=True)


def test_what_is_slower_by_less_is_named_once_it_has_lasted() -> None:
    def change(run: Run) -> None:
        slower(run, times=1.4)
        run.hosts[1].delay = 0.35

    run = Run()
    cause, _ = run.steps_until_told(change)

    assert (cause.code, cause.rank) == ("cpu-slow", 1)
    assert 10.0 <= run.told.now_s - run.changed_s <= 15.0


def test_a_rank_that_lost_half_of_its_core_is_named_at_once() -> None:
    def change(run: Run) -> None:
        run.steps_per_s /= 1.4
        run.hosts[1].cpu, run.hosts[1].delay = 0.45, 0.7
        run.hosts[0].cpu = 0.6

    cause, steps = Run().steps_until_told(change)

    assert (cause.code, cause.rank) == ("cpu-slow", 1)
    assert steps <= 10


def test_a_link_that_carries_little_less_is_named_once_it_has_lasted() -> None:
    def change(run: Run) -> None:
        slower(run, times=1.6)
        run.hosts[0].rtt_s, run.hosts[0].unsent = 2e-2, 10**6

    run = Run()
    cause, _ = run.steps_until_told(change)

    assert (cause.code, cause.link) == ("link-slow", (0, 1))
    assert 10.0 <= run.told.now_s - run.changed_s <= 16.0


def test_ranks_that_are_slower_in_turn_are_not_named() -> None:
    run = Run()
    for _ in range(60):
        assert run.look() == []
    slower(run, times=1.4)
    for turn in range(8):
        for node, host in enumerate(run.hosts):
            host.delay = 0.35 if turn % 2 == node else 0.0
        for _ in range(int(5.0 / PERIOD_S)):
            assert run.look() == []


def test_ranks_of_a_host_that_are_slower_in_turn_are_named_by_the_first_of_them() -> None:
    history = RunHistory([Place("alpha", (0, 1)), Place("beta", (2, 3))], here=0)

    def step(took_s: float, own_s: dict[int, float]) -> list[Cause]:
        history.now_s += took_s
        for number, known in history.ranks.items():
            known.taken.append(Step(history.now_s, took_s, own_s.get(number, 0.3), 0.0))
        return list(slow_downs(history, pace_now(history)))

    for _ in range(30):
        step(0.4, {})
    learn(history, pace_now(history))
    told = [step(0.55, {2 + at // 3 % 2: 0.46, 3 - at // 3 % 2: 0.44}) for at in range(60)]

    assert {cause.rank for causes in told for cause in causes} == {2}
    # It is told once it has lasted, and then without a break.
    first = next(at for at, causes in enumerate(told) if causes)
    assert 10.0 <= 0.55 * first <= 15.0
    assert all(told[first:])


def test_a_link_with_a_queue_before_it_is_slow() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[0].rtt_s, run.hosts[0].unsent = 2e-2, 10**6

    cause, steps = Run().steps_until_told(change)

    assert (cause.code, cause.link) == ("link-slow", (0, 1))
    assert steps <= 10


def test_a_link_is_slow_for_as_long_as_the_ranks_wait_for_it() -> None:
    run = Run()
    for _ in range(60):
        assert run.look() == []

    def stands(waits_s: float) -> list[Cause]:
        seen = []
        for node, sums in enumerate(run.sums):
            waits = replace(in_collective(77, waits_s), steps=int(run.steps))
            sent = {"sent_bytes": int(sums[2] + 1e6 * waits_s), "segments": int(sums[2] / 1500)}
            slow = link(1 - node, connections=2, rtt_s=2e-2, unsent_bytes=10**6, **sent)
            ranks = (rank(node, cpu_s=sums[0], delayed_s=sums[1], recorded=waits),)
            seen.append(Vitals(0, 0, ranks, links=(slow,)))
        run.told.look(*seen)
        return causes(run.told.history)

    told = {look * PERIOD_S: stands(look * PERIOD_S) for look in range(1, 30)}

    slow = {waits_s: found[0] for waits_s, found in told.items() if found}
    assert {cause.code for cause in slow.values()} == {"link-slow"}
    assert all(cause.since_s == pytest.approx(waits_s, abs=1) for waits_s, cause in slow.items())


def test_a_link_that_carries_what_it_did_is_not_slow_though_packets_take_longer() -> None:
    def change(run: Run) -> None:
        slower(run)
        for host in run.hosts:
            host.bytes_per_s, host.rtt_s, host.unsent = 0.9 * 50e6, 2e-2, 10**6

    with pytest.raises(AssertionError, match="nothing was told"):
        Run().steps_until_told(change)


@pytest.mark.parametrize(("rtt_s", "told"), [(2.5e-4, False), (6e-4, True)])
def test_a_link_that_carries_less_is_slow_only_where_packets_take_longer(
    rtt_s: float, told: bool
) -> None:
    def change(run: Run) -> None:
        slower(run)
        for host in run.hosts:
            host.unsent, host.rtt_s = 10**5, rtt_s

    if told:
        assert Run().steps_until_told(change)[0].code == "link-slow"
    else:
        with pytest.raises(AssertionError, match="nothing was told"):
            Run().steps_until_told(change)


def test_waiting_for_a_slow_link_costs_all_ranks_time_of_their_own() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[0].rtt_s, run.hosts[0].unsent = 2e-2, 10**6
        for host in run.hosts:
            # 0.16 of the 0.5 s that a step takes longer.
            host.delay = 0.16

    assert Run().steps_until_told(change)[0].code == "link-slow"


@pytest.mark.parametrize(("looks_after", "least", "most"), [(0, 0.4, 0.6), (12, 0.0, 0.0)])
def test_of_how_many_of_the_newest_looks_a_rank_loaded_data_is_known(
    looks_after: int, least: float, most: float
) -> None:
    run = Run()
    phases = ["training"] * 40 + ["loading", "training"] * 6 + ["training"] * looks_after
    for run.phase in phases:
        run.look()
    assert least <= pace_now(run.told.history).ranks[1].loading <= most


@pytest.mark.parametrize(("step_s", "cpu_s", "more"), [(1.0, 0.5, False), (0.6, 0.55, True)])
def test_ranks_do_more_only_where_that_explains_the_longer_step(
    step_s: float, cpu_s: float, more: bool
) -> None:
    def pace(step_s: float, cpu_s: float) -> Pace:
        return Pace(step_s, step_s, {rank: RankPace(cpu_s, 0.0, 0.0) for rank in (0, 1)}, {}, {})

    assert all_do_more(pace(0.4, 0.4), pace(step_s, cpu_s)) is more


def test_the_first_slow_steps_are_not_compared() -> None:
    history = Told().history
    # As they were when a link had become slow, in a part of the third step.
    usual, began, slow = (0.4, 0.33, 0.02), (0.6, 0.41, 0.15), (1.4, 0.45, 0.15)

    def take(*steps: tuple[float, float, float]) -> Pace:
        for took_s, cpu_s, delayed_s in steps:
            history.now_s += took_s
            for known in history.ranks.values():
                known.taken.append(Step(history.now_s, took_s, cpu_s, delayed_s))
        return pace_now(history)

    learn(history, take(*[usual] * 30))
    now = take(usual, usual, began, slow, slow)

    assert times_slower(history.usual, now) == pytest.approx(1.5)
    assert list(slow_downs(history, now)) == []


def test_a_link_that_was_connected_after_the_first_looks_is_compared() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].lost, run.hosts[1].unsent = 0.02, 10**5

    run = Run()
    run.connections = 1
    for _ in range(4):
        run.look()
    run.connections = 2

    assert run.steps_until_told(change, after=20)[0].code == "packets-lost"


def test_a_busy_host_that_answers_late_is_no_slow_link() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[0].rtt_s, run.hosts[0].unsent = 2e-2, 10**6
        # As it is when the busy program has just begun, or has just ended.
        run.hosts[1].delay = 0.2

    with pytest.raises(AssertionError, match="nothing was told"):
        Run().steps_until_told(change)


def test_lost_packets_are_told_apart_from_a_slow_link() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].lost, run.hosts[1].unsent = 0.02, 10**5

    cause, steps = Run().steps_until_told(change)

    assert (cause.code, cause.link) == ("packets-lost", (1, 0))
    assert steps <= 10


def test_the_cpu_time_that_lost_packets_cost_is_not_their_cause() -> None:
    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].lost, run.hosts[1].unsent = 0.02, 10**5
        run.hosts[1].cpu = 0.7

    cause, steps = Run().steps_until_told(change)

    assert (cause.code, cause.link) == ("packets-lost", (1, 0))
    assert steps <= 10


def test_steps_in_which_all_ranks_do_more_are_nobodys_fault() -> None:
    def change(run: Run) -> None:
        run.steps_per_s /= 2

    with pytest.raises(AssertionError, match="nothing was told"):
        Run().steps_until_told(change)


def test_after_longer_steps_are_usual_a_slow_rank_is_found_by_them() -> None:
    run = Run()
    with pytest.raises(AssertionError, match="nothing was told"):
        run.steps_until_told(lambda run: setattr(run, "steps_per_s", run.steps_per_s / 2))
    slower(run)
    run.hosts[0].delay = 0.5
    found = next(found for _ in range(60) if (found := run.look()))

    assert (found[0].code, found[0].rank) == ("cpu-slow", 0)
    assert found[0].params["times"] == pytest.approx(2, rel=0.4)


def test_lost_packets_are_told_though_all_ranks_compute_more() -> None:
    def change(run: Run) -> None:
        run.steps_per_s /= 2
        for host in run.hosts:
            host.lost, host.unsent = 0.02, 10**5

    run = Run()
    run.steps_until_told(change)

    for _ in range(120):
        assert [cause.code for cause in run.look()] == ["packets-lost"]


def test_a_link_is_not_slow_because_all_ranks_compute_more_between_its_messages() -> None:
    def change(run: Run) -> None:
        run.steps_per_s /= 1.5
        for host in run.hosts:
            host.bytes_per_s /= 1.5
            host.unsent, host.rtt_s = 10**5, 4e-4

    with pytest.raises(AssertionError, match="nothing was told"):
        Run().steps_until_told(change)


def test_a_link_that_has_more_to_carry_is_not_slow() -> None:
    def change(run: Run) -> None:
        slower(run)
        for host in run.hosts:
            host.unsent, host.bytes_per_s = 10**6, 50e6

    with pytest.raises(AssertionError, match="nothing was told"):
        Run().steps_until_told(change)


def test_a_run_that_becomes_faster_learns_it() -> None:
    run = Run()
    for _ in range(60):
        assert run.look() == []
    slower(run, times=0.5)
    for _ in range(60):
        assert run.look() == []
    assert run.told.history.usual is not None
    assert run.told.history.usual.step_s is not None
    assert run.told.history.usual.step_s < 0.3


def test_what_is_usual_is_learned_of_long_steps_too() -> None:
    run = Run()
    run.steps_per_s = 0.4

    def change(run: Run) -> None:
        slower(run)
        run.hosts[1].unsent, run.hosts[1].rtt_s = 1 << 20, 3e-2

    cause, steps = run.steps_until_told(change)

    assert (cause.code, set(cause.nodes)) == ("link-slow", {0, 1})
    assert steps <= 10

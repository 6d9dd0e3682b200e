"""Timed faults: what a file means, and what carrying it out does, without time or a lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.errors import UsageError, YokedError
from yoked.lab.follow import LocalRun, Progress, is_finished, newest_step
from yoked.lab.schedule import PlannedFault, RunPlace, parse
from yoked.lab.timed import Event, carry_out

HOSTS = ("alpha", "beta", "gamma")
RANDOM = """
[random]
kinds = ["cut", "slow-link HOST 20mbit", "one-way HOST OTHER"]
every = "20 s"
for = "50 s"
count = 40
"""


class FakeClock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, time_s: float) -> None:
        self.time_s += time_s


class FakeHand:
    """Remembers what it did and when; a run makes one step a second until `steps`."""

    def __init__(self, clock: FakeClock, *, steps: int = 0, refuses: Sequence[str] = ()) -> None:
        self.clock, self.steps, self.refuses = clock, steps, refuses
        self.done: list[tuple[float, str, str]] = []
        self.standing: list[str] = []

    def apply(self, do: Sequence[str]) -> str:
        if do[0] in self.refuses:
            raise YokedError(f"{do[0]} cannot be done")
        fault_id = f"{do[0]}-{len(self.done)}"
        self.standing.append(fault_id)
        self._note("apply", " ".join(do))
        return fault_id

    def heal(self, fault_id: str) -> None:
        self.standing.remove(fault_id)
        self._note("heal", fault_id.rpartition("-")[0])

    def progress(self, run: RunPlace) -> Progress:
        step = min(int(self.clock.time_s - 1000), self.steps)
        return Progress(step, finished=step == self.steps)

    def _note(self, what: str, which: str) -> None:
        self.done.append((round(self.clock.time_s - 1000, 1), what, which))


def carried_out(text: str, **hand: object) -> tuple[FakeHand, list[Event]]:
    clock = FakeClock()
    fake = FakeHand(clock, **hand)  # type: ignore[arg-type]
    plan = parse(text, "faults.toml").plan(seed=1, hosts=HOSTS)
    return fake, carry_out(plan, fake, clock=clock, tell=lambda event: None)


def test_a_file_is_read_into_faults_with_their_moments() -> None:
    file = parse(
        'seed = 7\n[[fault]]\nafter = "3 s"\ndo = "firewall alpha --reject"\nfor = "1 min"\n'
        '[[fault]]\nat_step = 20\nrun = "beta:runs/x"\ndo = "kill beta"\n',
        "faults.toml",
    )

    assert file.seed == 7
    assert file.faults == (
        PlannedFault(("firewall", "alpha", "--reject"), after_s=3.0, for_s=60.0),
        PlannedFault(("kill", "beta"), at_step=20, run=RunPlace("beta", "runs/x")),
    )
    assert [str(fault) for fault in file.faults] == [
        "after 3.00 s: firewall alpha --reject, for 1 min 00 s",
        "at step 20 of beta:runs/x: kill beta",
    ]


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("runs/x", RunPlace(None, "runs/x")),
        ("alpha:/data/x", RunPlace("alpha", "/data/x")),
        ("/odd:name/x", RunPlace(None, "/odd:name/x")),
    ],
)
def test_a_run_is_on_a_host_or_on_this_machine(written: str, place: RunPlace) -> None:
    assert RunPlace.parse(written) == place
    assert str(place) == written


FAULT = '[[fault]]\nafter = "3 s"\ndo = "cut alpha"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = [", "is not TOML"),
        ("", "names no fault"),
        (FAULT + "form = 3", r"\[\[fault\]\] 1: form is no key.*\nfix: did you mean for\?"),
        (FAULT + FAULT + "for = 3", r"\[\[fault\]\] 2: for is 3"),
        (FAULT + 'for = "soon"', r"for = 'soon' is not a duration"),
        (FAULT + "at_step = 3", "one of both must say when"),
        ('[[fault]]\ndo = "cut alpha"', "one of both must say when"),
        ('[[fault]]\nafter = "3 s"', "do is missing"),
        ('[[fault]]\nafter = "3 s"\ndo = "cut \'alpha"', "No closing quotation"),
        ('[[fault]]\nat_step = 3\ndo = "cut alpha"', "belong together"),
        ('[[fault]]\nat_step = true\nrun = "x"\ndo = "cut alpha"', "at_step is True"),
        ('[[fault]]\nat_step = 0\nrun = "x"\ndo = "cut alpha"', "at_step is 0"),
        ('[fault]\nafter = "3 s"', r"fault is one table\nfix: write \[\[fault\]\]"),
        ("random = 3", "is not a table"),
        ('[random]\nevery = "2 s"\nfor = "1 s"', "kinds is missing"),
        ('[random]\nkinds = "cut"\nevery = "2 s"\nfor = "1 s"', "kinds is 'cut'"),
        ('[random]\nkinds = ["cut"]\nevery = "2 s"', "for is missing or zero"),
        (RANDOM + "seed = 3", "did you mean|allowed are"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"^faults\.toml") as refused:
        parse(text, "faults.toml")

    refused.match(said)
    assert refused.value.fix


@given(seed=st.integers(min_value=0, max_value=2**63))
def test_a_random_plan_is_decided_by_its_seed_and_breaks_one_thing_of_a_host_at_a_time(
    seed: int,
) -> None:
    file = parse(RANDOM, "faults.toml")

    plan = file.plan(seed=seed, hosts=HOSTS)

    assert plan == file.plan(seed=seed, hosts=HOSTS)
    assert len(plan.faults) == 40
    free_from_s = dict.fromkeys(HOSTS, 0.0)
    for fault in plan.faults:
        assert fault.after_s is not None
        assert fault.for_s is not None
        struck = [word for word in fault.do if word in HOSTS]
        assert len(struck) == len(set(struck)) == (2 if fault.do[0] == "one-way" else 1)
        for host in struck:
            assert free_from_s[host] <= fault.after_s
            free_from_s[host] = fault.after_s + fault.for_s


def test_seeds_give_plans_that_differ_and_stay_the_same_for_ever() -> None:
    file = parse(RANDOM.replace("40", "3"), "faults.toml")

    first, second = (file.plan(seed=seed, hosts=HOSTS) for seed in (1, 2))

    assert first.faults != second.faults
    assert [str(fault) for fault in first.faults] == SEED_1


SEED_1 = [
    "after 26.9 s: cut gamma, for 50.0 s",
    "after 46.9 s: cut alpha, for 50.0 s",
    "after 1 min 13 s: slow-link beta 20mbit, for 50.0 s",
]


def test_random_faults_stay_with_the_hosts_that_were_named() -> None:
    text = RANDOM.replace('"one-way HOST OTHER"', '"lossy HOST 5"') + 'hosts = ["beta"]\n'

    plan = parse(text, "faults.toml").plan(seed=3, hosts=HOSTS)

    assert {fault.do[1] for fault in plan.faults} == {"beta"}


@pytest.mark.parametrize(
    ("hosts", "said"), [('["betta"]', "which this lab has not"), ('["beta"]', "needs two hosts")]
)
def test_random_faults_for_hosts_that_cannot_be_meant_are_refused(hosts: str, said: str) -> None:
    text = f'[random]\nkinds = ["cut HOST OTHER"]\nevery = "2 s"\nfor = "1 s"\nhosts = {hosts}'

    with pytest.raises(UsageError, match=said):
        parse(text, "faults.toml").plan(seed=3, hosts=HOSTS)


def test_faults_come_and_go_at_their_moments_and_those_without_an_end_stay() -> None:
    hand, events = carried_out(
        '[[fault]]\nafter = "5 s"\ndo = "cut beta"\n'
        '[[fault]]\nafter = "3 s"\ndo = "stop alpha"\nfor = "10 s"\n'
    )

    assert hand.done == [
        (3.0, "apply", "stop alpha"),
        (5.0, "apply", "cut beta"),
        (13.0, "heal", "stop"),
    ]
    assert hand.standing == ["cut-1"]
    assert [(event.what, event.at_s) for event in events] == [
        ("applied", 3.0),
        ("applied", 5.0),
        ("healed", 13.0),
    ]


def test_a_fault_at_a_step_waits_for_it_and_is_passed_over_when_the_run_ends_before() -> None:
    text = '[[fault]]\nat_step = 20\nrun = "runs/x"\ndo = "kill beta"\n'

    reached, _ = carried_out(text, steps=30)
    missed, events = carried_out(text, steps=10)

    assert reached.done == [(20.0, "apply", "kill beta")]
    assert missed.done == []
    assert [(event.what, event.detail) for event in events] == [
        ("skipped", "the run finished at step 10")
    ]


def test_a_fault_that_cannot_be_brought_about_is_told_and_the_others_follow() -> None:
    hand, events = carried_out(
        '[[fault]]\nafter = "1 s"\ndo = "oom beta 5"\nfor = "1 s"\n'
        '[[fault]]\nafter = "2 s"\ndo = "cut beta"\n',
        refuses=["oom"],
    )

    assert [(event.what, event.detail) for event in events] == [
        ("failed", "oom cannot be done"),
        ("applied", "cut-0"),
    ]
    assert hand.standing == ["cut-0"]


def test_an_interrupt_heals_everything_that_was_brought_about() -> None:
    clock = FakeClock()
    hand = FakeHand(clock)
    plan = parse(
        '[[fault]]\nafter = "1 s"\ndo = "cut beta"\n'
        '[[fault]]\nafter = "2 s"\ndo = "stop alpha"\nfor = "10 s"\n',
        "faults.toml",
    ).plan(seed=1, hosts=HOSTS)

    def interrupt(event: Event) -> None:
        if event.what == "applied" and event.fault.do[0] == "stop":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, hand, clock=clock, tell=interrupt)

    assert hand.standing == []
    assert [(what, which) for _, what, which in hand.done[2:]] == [
        ("heal", "stop"),
        ("heal", "cut"),
    ]


def test_healing_goes_on_when_nobody_listens_any_more() -> None:
    clock = FakeClock()
    hand = FakeHand(clock)
    plan = parse(FAULT + FAULT.replace("cut", "stop"), "f").plan(seed=1, hosts=HOSTS)

    def leave(event: Event) -> None:
        if event.fault.do[0] == "stop":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        carry_out(plan, hand, clock=clock, tell=leave)

    assert hand.standing == []


def test_the_newest_step_is_that_of_the_last_whole_line() -> None:
    assert newest_step(['{"step": 1}', '{"step": 2}', '{"st']) == 2
    assert newest_step([b'{"step": 4}', b'{"note": "resumed"}', b""]) == 4
    assert newest_step([]) is None


def test_the_progress_of_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    run = LocalRun(str(tmp_path))
    before = run.progress()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    under_way = run.progress()
    (tmp_path / "result.json").write_text('{"state": "finished"}')

    assert (before, under_way) == (Progress(0), Progress(2))
    assert run.progress() == Progress(2, finished=True)


def test_an_interrupted_run_may_go_on_and_is_not_finished() -> None:
    assert not is_finished('{"state": "interrupted"}')
    assert not is_finished("")

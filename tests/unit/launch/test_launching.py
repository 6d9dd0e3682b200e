"""What a launch waits for, as several hosts tell it, and a host that never comes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from yoked.core.schema import decode
from yoked.errors import HostError
from yoked.launch import launching
from yoked.launch.bootstrap.outcome import Failure
from yoked.launch.launching import Launch, Stage, drawing, failed_alone, line_of, saying
from yoked.launch.registry import Record
from yoked.liveline import LiveText

NODES = [{"host": name, "ranks": 1} for name in ("i9", "pi", "nuc")]
NOW_S = 1000.0
DIED = {
    "host": "pi",
    "node": 1,
    "rank": None,
    "cause": "launcher-died",
    "what": "its launcher was killed by SIGKILL",
    "time_s": 990.0,
}


def told(node: int, stage: dict[str, Any] | None, state: str = "running", **more: Any) -> Any:
    return {
        "state": state,
        "node_rank": node,
        "nodes": NODES,
        "now_s": NOW_S,
        "started_s": NOW_S - 7,
        "failure": None,
        "stage": stage,
        **more,
    }


def gathers(*hosts: str) -> dict[str, Any]:
    return {"begun": False, "since_s": NOW_S - 20, "hosts": list(hosts), "ranks": []}


def runs(doing: str, for_s: float = 1.0, *, begun: bool = False) -> dict[str, Any]:
    ranks = [] if begun else [{"rank": 0, "doing": doing, "since_s": NOW_S - for_s}]
    return {"begun": begun, "since_s": NOW_S, "hosts": [], "ranks": ranks}


def record(*stages: dict[str, Any] | None) -> Record:
    hosts = {NODES[node]["host"]: told(node, stage) for node, stage in enumerate(stages)}
    return Record("r", "id", hosts)


@pytest.mark.parametrize(
    ("stages", "line", "age_s"),
    [
        ((gathers("pi", "nuc"), None, None), "starting the launcher on pi and nuc", 7),
        (
            (gathers("pi"), gathers("i9"), gathers("pi")),
            "waiting for the launcher on pi to reach i9",
            20,
        ),
        ((gathers(), gathers(), gathers()), "starting ranks on i9, pi and nuc", 20),
        (
            (runs("meeting"), runs("importing torch", 12), runs("compiling")),
            "importing torch on pi",
            12,
        ),
        (
            (runs("meeting", 3), runs("meeting", 9), runs("waiting for peers")),
            "ranks meeting on i9 and pi",
            9,
        ),
        (
            (runs("a word of a later yoked"), runs("meeting"), runs("meeting")),
            "running without a line or a step yet on i9",
            1,
        ),
    ],
)
def test_a_launch_waits_for_those_that_are_least_far(
    stages: tuple[Any, ...], line: str, age_s: float
) -> None:
    found = line_of(record(*stages))

    assert found.parts[0].text == line
    assert found.since_s is not None
    assert time.monotonic() - found.since_s == pytest.approx(age_s, abs=1)


def test_what_the_other_ranks_are_about_is_said_where_there_is_room() -> None:
    compiles = runs("compiling", 12)
    compiles["ranks"] += [{**compiles["ranks"][0], "rank": number} for number in (3, 4)]
    meets, imports = runs("meeting"), runs("importing torch")
    meets["ranks"][0]["rank"], imports["ranks"][0]["rank"] = 1, 2

    found = line_of(record(compiles, meets, imports))

    assert found.fit(200) == "importing torch on nuc  ranks 0, 3 and 4 compiling  rank 1 meeting"
    assert found.fit(24) == "importing torch on nuc"


def test_nothing_is_waited_for_once_a_step_was_taken_or_the_run_is_over() -> None:
    over = Record("r", "id", {"i9": told(0, gathers("pi"), "failed")})

    assert line_of(record(runs("", begun=True), runs("training"), runs("training"))) == LiveText()
    assert line_of(over) == LiveText()


def test_a_host_that_is_over_while_others_go_on_has_failed_alone() -> None:
    hosts = {"i9": told(0, gathers("pi")), "pi": told(1, None, "failed", failure=DIED)}
    ended = {name: {**each, "state": "failed"} for name, each in hosts.items()}
    stopped = {**hosts, "pi": told(1, None, "stopped")}

    assert failed_alone(Record("r", "id", hosts)) == DIED
    assert failed_alone(Record("r", "id", ended)) is None
    assert failed_alone(Record("r", "id", stopped)) is None
    # The host program reads it so.
    assert decode(Failure, DIED).cause == "launcher-died"


def test_the_others_are_told_once_and_stopped_where_they_cannot_be_told() -> None:
    calls: list[tuple[str, str]] = []

    class Agent:
        def __init__(self, host: str) -> None:
            self.host = host

        def call(self, name: str, **args: Any) -> None:
            calls.append((self.host, name))
            assert args["run"] == "r"
            if (self.host, name) == ("nuc", "job_failed"):
                raise HostError("nuc: the disk is full")

    hosts = {
        "i9": told(0, gathers("pi")),
        "pi": told(1, None, "failed", failure=DIED),
        "nuc": told(2, gathers("i9")),
    }
    agents: Any = {name: Agent(name) for name in hosts}
    launch = Launch(lambda: Record("r", "id", hosts), lambda: agents, print)

    assert [launch.look(), launch.look()] == [True, True]
    assert sorted(calls) == [("i9", "job_failed"), ("nuc", "job_failed"), ("nuc", "job_stop")]


def test_a_stage_names_the_hosts_that_are_not_through() -> None:
    stage = Stage("connecting")
    both, one = threading.Event(), threading.Event()
    seen: list[LiveText] = []

    def act(host: str) -> None:
        (one if host == "pi" else both).wait(20)

    def watch() -> None:
        for words, passed in (("i9 and pi", both), ("pi", one)):
            until_s = time.monotonic() + 20
            wanted = LiveText.of(f"copying yoked to {words}")
            while stage.line() != wanted and time.monotonic() < until_s:
                time.sleep(0.01)
            seen.append(stage.line())
            passed.set()

    thread = threading.Thread(target=watch)
    thread.start()
    stage.at_once("copying yoked to", act, {"i9": "i9", "pi": "pi"})
    thread.join()

    assert seen == [LiveText.of(f"copying yoked to {words}") for words in ("i9 and pi", "pi")]


def test_where_nothing_can_be_drawn_a_line_is_said_now_and_then_with_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launching, "SAY_EVERY_S", 0.05)
    monkeypatch.setattr(launching, "_LOOK_AT_LINE_EVERY_S", 0.01)
    notes: list[str] = []
    enough = threading.Event()
    line = LiveText.of("importing torch on pi", since_s=time.monotonic() - 75)

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 2:
            enough.set()

    with saying(note, lambda: line):
        assert enough.wait(20)

    assert notes[0] == "importing torch on pi  (1 min 15 s)"


def test_a_line_is_drawn_again_and_again_and_taken_away_at_the_end() -> None:
    drawn: list[LiveText] = []
    seen = threading.Event()

    def live(line: LiveText) -> None:
        drawn.append(line)
        if len(drawn) == 3:
            seen.set()

    with drawing(live, lambda: LiveText.of(f"look {len(drawn)}")):
        assert seen.wait(20)

    assert drawn[:3] == [LiveText.of(f"look {number}") for number in range(3)]
    assert drawn[-1] == LiveText()


def test_hosts_that_give_no_answer_are_no_death() -> None:
    def ask() -> Record:
        raise HostError("pi: cable cut")

    launch = Launch(ask, dict, print)

    assert not launch.look()
    assert not launch.over


def test_what_holds_a_run_up_is_said_once_and_when_it_has_passed() -> None:
    cause = {"cause": "rank-stopped", "hosts": ["pi"], "rank": 1, "what": "its process was stopped"}
    slow = {**cause, "cause": "cpu-slow", "what": "it waits for a core"}
    said: list[str] = []
    # None: the host that tells it gives no answer then.
    seen: list[Any] = [[], [cause], None, [{**cause, "since_s": 9}], [], [slow]]
    looks = iter(seen)

    def ask() -> Record:
        stage, causes = runs("training", begun=True), next(looks)
        hosts = {"i9": told(0, stage), "nuc": told(2, stage)}
        if causes is not None:
            hosts["pi"] = told(1, stage, diagnosis={"causes": causes})
        return Record("r", "id", hosts)

    launch = Launch(ask, dict, said.append)
    for _ in seen:
        launch.look()

    assert said == [
        "held up: rank 1 on pi: its process was stopped",
        "it gets on again",
        "slow: rank 1 on pi: it waits for a core",
    ]


def test_a_warning_is_said_once_and_when_it_has_passed() -> None:
    warning = {"cause": "ranks-alone", "hosts": ["i9"], "what": "its ranks share nothing: step 1"}
    later = {**warning, "what": "its ranks share nothing: step 2"}
    said: list[str] = []
    seen: list[Any] = [[], [{**warning, "fix": ["use DDP"]}], [later], [], []]
    looks = iter(seen)

    def ask() -> Record:
        found = {"diagnosis": {"attempt": 0, "causes": [], "warnings": next(looks)}, "attempt": 0}
        return Record("r", "id", {"i9": told(0, runs("training", begun=True), **found)})

    launch = Launch(ask, dict, said.append)
    for _ in seen:
        launch.look()

    assert said == [
        "warning: its ranks share nothing: step 1\n  fix: use DDP",
        "its ranks share what they learn by now",
    ]

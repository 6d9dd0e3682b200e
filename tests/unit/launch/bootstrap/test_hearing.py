"""What follows from what hosts say of an attempt, and from their silence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import HostError
from yoked.launch.bootstrap import hearing
from yoked.launch.bootstrap.control import Notice
from yoked.launch.bootstrap.hearing import Hearing
from yoked.launch.bootstrap.job import Job, Node, Program
from yoked.launch.bootstrap.verdict import VANISHED, Failure

FAILURE = Failure("beta", 1, "killed", 1.0, rank=1)


@dataclass
class FakeControl:
    """What was heard, as a test wants it."""

    notices: dict[int, Notice]
    silences: dict[int, float] = field(default_factory=dict)
    trouble: HostError | None = None
    connected: bool = True

    def silent_s(self, node: int) -> float | None:
        return self.silences.get(node)


def hear(control: FakeControl, *, node: int = 0, number: int = 0) -> Hearing:
    names = ("alpha", "beta", "gamma")
    job = Job(
        run="r",
        launch_id="0123456789ab",
        folder=Path("/job"),
        node_rank=node,
        nodes=tuple(Node(name, "192.0.2.1", 1) for name in names),
        control_port=41,
        control_fd=None,
        restarts=0,
        resume_args=(),
        program=Program("script", "x.py", ()),
        cwd=Path("/job"),
        bootstrap=False,
    )
    fake: Any = control
    return Hearing(job, fake, number)


def running(attempt: int = 0) -> Notice:
    return Notice(attempt=attempt)


def reported(*failures: Failure, attempt: int = 0) -> Notice:
    return Notice(attempt=attempt, failing=bool(failures), report=failures)


def all_well() -> FakeControl:
    return FakeControl({node: running() for node in range(3)}, {1: 0.1, 2: 0.1})


def test_a_run_in_which_all_is_well_goes_on() -> None:
    assert not hear(all_well()).must_end(None)


def test_a_failure_ends_the_attempt_it_belongs_to_and_no_other() -> None:
    control = all_well()
    control.notices[1] = Notice(attempt=0, failing=True)

    assert hear(control).must_end(None)
    assert not hear(control, number=1).must_end(None)


def test_a_stop_ends_a_run_and_an_interrupt_lets_ranks_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = all_well()
    assert hear(control).must_end("stopped")
    control.notices[1] = Notice(attempt=0, failing=True)
    patient = hear(control)

    assert not patient.must_end("interrupted")
    monkeypatch.setattr(hearing, "SAVING_S", -1.0)
    assert patient.must_end("interrupted")


def test_a_host_that_is_silent_too_long_ends_the_run_and_one_that_blinks_does_not() -> None:
    control = all_well()
    control.silences[2] = hearing.SILENCE_S - 1
    assert not hear(control).must_end(None)

    control.silences[2] = hearing.SILENCE_S + 1
    assert hear(control).must_end(None)


def test_a_host_that_has_not_come_is_waited_for_and_then_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = FakeControl({0: reported(), 1: reported()}, {1: 0.1})
    waiting = hear(control)
    assert not waiting.must_end(None)

    monkeypatch.setattr(hearing, "CONNECT_S", -1.0)

    assert waiting.must_end(None)
    [gone] = waiting.gone()
    assert gone.headline == "gamma: its launcher did not reach alpha"
    assert "port 41" in gone.fix[0]


def test_reports_settle_an_attempt_when_all_have_come_or_the_rest_is_silent() -> None:
    control = all_well()
    control.notices |= {0: reported(), 1: reported(FAILURE)}
    one = hear(control)
    one.expect_reports()
    assert not one.settled

    control.silences[2] = hearing.SILENT_S + 1
    assert one.settled
    assert not one.all_reported
    [gone] = one.gone()
    assert (gone.host, gone.kind) == ("gamma", VANISHED)

    control.notices[2] = reported()
    assert one.all_reported
    assert one.gone() == []


def test_silence_settles_nothing_while_the_others_still_train() -> None:
    control = all_well()
    control.notices |= {0: reported(), 1: reported()}
    control.silences[2] = hearing.SILENT_S + 1

    assert not hear(control).settled


def test_a_lost_store_is_the_end_of_its_host() -> None:
    control = all_well()
    control.trouble = HostError("the connection was lost", fix="look at alpha")

    lost = hear(control, node=1)

    assert lost.must_end(None)
    [gone] = lost.gone()
    assert (gone.host, gone.kind, gone.fix) == ("alpha", VANISHED, ("look at alpha",))


def test_a_store_that_was_never_reached_is_the_trouble_of_this_host() -> None:
    problem = HostError("beta did not reach alpha", fix="yoked doctor")
    control = FakeControl({1: Notice()}, trouble=problem, connected=False)

    [gone] = hear(control, node=1).gone()

    assert (gone.host, gone.kind, gone.what) == ("beta", "HostError", "beta did not reach alpha")


def test_node_0_waits_for_those_that_listen() -> None:
    control = all_well()
    control.notices[1] = Notice(attempt=0, leaving=True)
    assert hear(control).listeners == [2]

    control.silences[2] = hearing.SILENT_S + 1
    assert hear(control).listeners == []

"""The doctor's quick form beside a launch: what stops it, what does not, and what is said."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.cli.output import Output
from yoked.doctor import preflight
from yoked.doctor.preflight import run_preflight
from yoked.errors import DataError, HostError, YokedError
from yoked.fleet.model import Fleet, Host
from yoked.records.examination import Examination, Finding, Fix, HostSeen, Need, SshFailure

FLEET = Fleet("home", (Host("alpha"), Host("beta")), Path("yoked.toml"))
FIREWALL = Finding(
    "firewall",
    "error",
    ("beta",),
    "no answer at high ports",
    "ranks would hang",
    (Fix("beta", "ufw allow from 10.0.0.1", root=True),),
    link=("alpha", "beta"),
)
NEED = Need(keep=7)
DOWN = SshFailure("timeout", "timed out")
SILENT = Finding("ssh-timeout", "error", ("alpha",), "timed out", "it is wanted")
CLOCK = Finding("clock", "warning", ("beta",), "21 s ahead", "")


@pytest.fixture
def output() -> Output:
    made = Output(json_mode=False)
    made.console = Console(file=io.StringIO(), width=200)
    return made


def said(output: Output) -> str:
    assert isinstance(output.console.file, io.StringIO)
    return output.console.file.getvalue()


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Sets what looking at the fleet comes to."""

    def arrange(
        *findings: Finding, look: Callable[[], None] = lambda: None, down: tuple[str, ...] = ()
    ) -> list[Any]:
        looks: list[Any] = []

        def stand_in(fleet: Fleet, need: Need, **flags: Any) -> Examination:
            looks.append((fleet, need, flags["quick"]))
            look()
            hosts = tuple(
                HostSeen(host.name, {}, DOWN if host.name in down else None, facts={"uid": 1000})
                for host in fleet.hosts
            )
            return Examination(hosts, quick=True, took_s=0.5)

        monkeypatch.setattr("yoked.doctor.examine.look", stand_in)
        monkeypatch.setattr("yoked.doctor.causes.findings_of", lambda _: findings)
        return looks

    return arrange


def launch(output: Output, prepare: Callable[[], None] = lambda: None) -> None:
    with run_preflight(FLEET, NEED, wanted=True) as doctor:
        prepare()
        assert doctor is not None
        doctor.require_health(output.note)


def ended_by(problem: YokedError) -> YokedError:
    """What a launch ends with that comes to grief beside the doctor."""
    with pytest.raises(type(problem)) as caught, run_preflight(FLEET, NEED, wanted=True):
        raise problem
    return caught.value


def test_when_all_is_well_one_line_is_said(
    output: Output, finds: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    looks = finds()

    launch(output)

    assert said(output) == snapshot
    assert looks == [(FLEET, NEED, True)]


def test_warnings_are_named_in_that_line(output: Output, finds: Callable[..., Any]) -> None:
    finds(CLOCK)

    launch(output)

    assert said(output).count("\n") == 1
    assert "1 warning (clock)" in said(output)


def test_an_error_stops_with_the_line_that_mends_it(
    output: Output, finds: Callable[..., Any]
) -> None:
    finds(FIREWALL, CLOCK)

    with pytest.raises(HostError) as caught:
        launch(output)

    assert "1 error" in caught.value.what
    assert "firewall, alpha to beta:" in caught.value.what
    assert "no answer at high ports" in caught.value.what
    assert "clock" not in caught.value.what
    assert caught.value.fix[0] == "sudo ufw allow from 10.0.0.1    on beta"
    assert any("--no-doctor" in line for line in caught.value.fix)


def test_a_launch_goes_on_while_the_doctor_looks(
    output: Output, finds: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    prepared = threading.Event()
    finds(look=lambda: _within(prepared))

    launch(output, prepare=prepared.set)

    assert said(output) == snapshot


def _within(event: threading.Event) -> None:
    assert event.wait(30.0)


def test_a_host_that_fails_meanwhile_is_explained_by_the_doctor(
    output: Output, finds: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    finds(FIREWALL)
    problem = HostError("beta: something odd")

    found = ended_by(problem)

    assert str(found) == snapshot
    assert found.__cause__ is problem


def test_why_ssh_does_not_come_in_is_said_once_and_what_else_is_wrong_with_it(
    output: Output, finds: Callable[..., Any]
) -> None:
    problem = HostError("alpha: it did not answer", fix="ping alpha")
    finds(SILENT, down=("alpha",))
    assert ended_by(problem) is problem

    finds(SILENT, FIREWALL, down=("alpha",))
    found = ended_by(problem)
    assert found.what.startswith("alpha: it did not answer\n")
    assert "no answer at high ports" in found.what
    assert "ssh-timeout" not in found.what
    assert found.fix[:2] == ("ping alpha", "sudo ufw allow from 10.0.0.1    on beta")


def test_what_the_doctor_does_not_know_stays_as_it_is(
    output: Output, finds: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    finds(CLOCK)
    assert str(ended_by(HostError("beta: something odd"))) == snapshot

    finds(FIREWALL)
    assert str(ended_by(DataError("no corpus"))) == snapshot


def test_an_examination_that_cannot_be_made_stops_nobody(
    output: Output, finds: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    def fail() -> None:
        raise HostError("there is no ssh here")

    finds(look=fail)

    launch(output)

    assert said(output) == snapshot


def test_a_bug_of_the_doctors_is_not_hidden(output: Output, finds: Callable[..., Any]) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    finds(look=fail)

    with pytest.raises(ZeroDivisionError):
        launch(output)


def test_nobody_waits_for_ever(
    output: Output,
    finds: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(preflight, "PATIENCE_S", 0.01)
    over = threading.Event()
    finds(look=lambda: _within(over))

    launch(output)

    assert said(output) == snapshot
    over.set()


def test_what_was_found_is_kept_as_the_doctor_has_it_for_programs(
    finds: Callable[..., Any], output: Output
) -> None:
    finds(CLOCK)
    with run_preflight(FLEET, NEED, wanted=True) as doctor:
        assert doctor is not None
        doctor.require_health(output.note)

    said = doctor.said

    assert (said["asked"], said["why"], said["ok"], said["took_s"]) == (True, None, True, 0.5)
    (found,) = conforms("doctor", said)["findings"]
    assert (found["check"], found["severity"], found["hosts"]) == ("clock", "warning", ["beta"])


def test_of_a_look_that_could_not_be_made_the_reason_is_kept(
    finds: Callable[..., Any], output: Output
) -> None:
    def fail() -> None:
        raise DataError("no code")

    finds(look=fail)
    with run_preflight(FLEET, NEED, wanted=True) as doctor:
        assert doctor is not None
        doctor.require_health(output.note)

    assert doctor.said == {"asked": True, "why": "no code", "findings": []}


@pytest.mark.parametrize(
    ("hosts", "wanted"), [((Host("."),), True), ((Host("alpha"), Host("beta")), False)]
)
def test_without_a_link_or_a_wish_nobody_looks(
    finds: Callable[..., Any], hosts: tuple[Host, ...], wanted: bool
) -> None:
    looks = finds(FIREWALL)

    with run_preflight(Fleet("home", hosts, Path("yoked.toml")), Need(), wanted=wanted) as doctor:
        assert doctor is None

    assert looks == []

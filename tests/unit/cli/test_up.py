"""`yoked up` as it is typed, with steps that are made up; and `yoked` alone."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.cli.commands import here
from yoked.cli.commands.up_person import Terminal
from yoked.cli.main import main
from yoked.cli.output import Output
from yoked.errors import HostError, YokedError
from yoked.fleet.file import read_fleet
from yoked.probe.store import path_for
from yoked.workflows import up
from yoked.workflows.passed import note_passed
from yoked.workflows.steps import Ask, Command, Report, Standing
from yoked.workflows.up import Site

FLEET = "".join(f'[[host]]\nname = "{name}"\ninterface = "eth0"\n' for name in ("alpha", "beta"))
HANDS = Standing(
    "hands",
    "ssh-denied on beta",
    ("error  ssh-denied", "  on this machine, by hand:", "    ssh-copy-id beta"),
    (Command("", "ssh-copy-id beta", by_hand=True),),
    findings=({"check": "ssh-denied"},),
)


@dataclass
class MadeUp:
    standing: Standing | YokedError
    name: str = "ssh"
    purpose: str = "reach every host by ssh"
    asked: list[bool] = field(default_factory=list)

    def check(self) -> Standing:
        if isinstance(self.standing, YokedError):
            raise self.standing
        return Standing("done", "it is done") if True in self.asked else self.standing

    def act(self, ask: Ask) -> bool:
        self.asked.append(ask(["write yoked.toml"]))
        return self.asked[-1]


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[MadeUp]]:
    """Has the steps stand so, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))

    def stand(*standings: Standing | YokedError) -> list[MadeUp]:
        names = ("ssh", "init", "install")
        steps = [MadeUp(each, name) for each, name in zip(standings, names, strict=False)]
        monkeypatch.setattr(up, "steps_of", lambda site: (steps, None, up.PlanStep(site)))
        return steps

    return stand


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    # `yoked` alone tells of steps too, and has no schema.
    return conforms("up", found) if "needs" in found else found


def test_without_a_terminal_it_ends_with_what_hands_are_to_do(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    stands(Standing("done", "2 hosts reached"), HANDS)

    assert main(["up", "alpha", "beta"]) == 1

    assert capsys.readouterr().out == snapshot


def test_a_folder_in_the_place_of_the_file_is_refused_before_anything_is_looked_at(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stands(HANDS)
    (tmp_path / "home").mkdir()

    assert main(["up", ".", "--fleet", "home"]) == 2

    assert "fix: --fleet home/yoked.toml" in capsys.readouterr().err


def test_a_program_learns_each_step_and_what_it_needs(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stands(Standing("done", "2 hosts reached"), HANDS, Standing("due", "install"))

    assert main(["up", "alpha", "beta", "--json"]) == 1

    found = told(capsys)
    assert (found["ok"], found["needs"], found["hosts"]) == (False, "hands", ["alpha", "beta"])
    steps = found["steps"]
    assert [each["state"] for each in steps] == ["done", "hands", "waiting"]
    assert steps[1]["findings"] == [{"check": "ssh-denied"}]
    assert steps[1]["commands"] == [
        {"host": "", "command": "ssh-copy-id beta", "by_hand": True, "root": False}
    ]
    assert found["next"] == [
        {"command": "yoked up alpha beta", "argv": ["yoked", "up", "alpha", "beta"]}
    ]


def test_a_program_is_told_the_line_that_agrees(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "my config"
    config.touch()
    (step,) = stands(Standing("due", "write yoked.toml"))

    assert main(["up", "alpha", "beta", "--ssh-config", str(config), "--depth", "6", "--json"]) == 1

    found = told(capsys)
    assert (found["needs"], step.asked) == ("consent", [])
    line = ["yoked", "up", "alpha", "beta", "--ssh-config", str(config), "--depth", "6", "--yes"]
    assert found["next"][0]["argv"] == line


def test_a_terminal_that_is_closed_ends_what_a_step_started(
    stands: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (step,) = stands(Standing("due", "measure", consent=False))
    monkeypatch.setattr(step, "act", lambda _: signal.raise_signal(signal.SIGHUP))

    assert main(["up", "alpha"]) == 130


def test_a_failure_has_its_reason_and_fix(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    stands(HostError("alpha: no Python from 3.11 to 3.14", fix="install one there"))

    assert main(["up", "alpha"]) == 1
    assert capsys.readouterr().out == snapshot

    assert main(["up", "alpha", "--json"]) == 1
    error = told(capsys)["steps"][0]["error"]
    assert (error["what"], error["fix"]) == (
        "alpha: no Python from 3.11 to 3.14",
        ["install one there"],
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["up", "alpha", "alpha"],
        ["up", "-oProxyCommand=x"],
        ["up", "alpha", "--depth", "0"],
        ["up", "alpha", "--ssh-config", "nowhere"],
        ["up", "--fleet", "gone.toml", "--hosts"],
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_dialled(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    stands(HostError("somebody was dialled"))

    assert main(argv) == 2

    said = capsys.readouterr().err
    assert "fix:" in said
    assert "dialled" not in said


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """A person at a terminal who types these lines, and what is shown to him."""

    def sit(*typed: str, yes: bool = False) -> Terminal:
        stdin = io.StringIO("".join(f"{line}\n" for line in typed))
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(
            "yoked.cli.commands.up_person.select.select", lambda read, *_: (read, [], [])
        )
        output = Output(json_mode=False)
        monkeypatch.setattr(type(output.console), "is_terminal", True)
        return Terminal(output, yes=yes)

    return sit


def test_a_person_is_asked_before_a_change(
    at_terminal: Callable[..., Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    person = at_terminal("y", "n")

    assert [person.agrees(["write yoked.toml"]), person.agrees(["install"])] == [True, False]

    assert capsys.readouterr().err.count("do this?") == 2


def test_with_yes_nobody_is_asked_and_all_is_told(
    at_terminal: Callable[..., Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    person = at_terminal(yes=True)

    assert person.agrees(["write yoked.toml"])

    said = capsys.readouterr().err
    assert "write yoked.toml" in said
    assert "do this?" not in said


def test_hands_are_told_once_what_to_do_and_waited_for(
    at_terminal: Callable[..., Terminal],
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    person = at_terminal("", "")
    step = MadeUp(HANDS)

    helped = [person.helps(step, HANDS, look=True) for _ in range(3)]

    # The third time the terminal is gone.
    assert helped == [True, True, False]
    assert capsys.readouterr().err == snapshot


def test_steps_that_are_done_are_told_as_they_end(
    at_terminal: Callable[..., Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal().ends(Report("init", "done", Standing("done", "yoked.toml has 2 hosts")))

    assert capsys.readouterr().err == "init     yoked.toml has 2 hosts\n"


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ((), ["alpha", "beta"]),
        (("alpha", "beta"), ["alpha", "beta"]),
        (("beta", "alpha"), ["beta", "alpha"]),
        (("alpha",), ["alpha"]),
        (("alpha", "gamma"), ["alpha", "gamma"]),
    ],
)
def test_the_file_counts_where_it_is_of_the_hosts_that_are_named(
    tmp_path: Path,
    at_terminal: Callable[..., Terminal],
    names: tuple[str, ...],
    meant: list[str],
) -> None:
    file = tmp_path / "yoked.toml"
    file.write_text(FLEET)

    site = Site(names, file, None, None, False, at_terminal())

    assert [host.name for host in site.fleet.hosts] == meant
    is_kept = names in ((), ("alpha", "beta"))
    assert (up.InitStep(site).check().state == "done") == is_kept


def test_without_a_file_and_names_this_machine_is_meant(
    tmp_path: Path, at_terminal: Callable[..., Terminal]
) -> None:
    site = Site((), tmp_path / "yoked.toml", None, None, False, at_terminal())

    assert [host.name for host in site.fleet.hosts] == ["."]
    assert up.InitStep(site).check().state == "done"


# ---- `yoked` alone ----


def test_alone_it_names_the_first_command(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main([]) == 0

    assert capsys.readouterr().out == snapshot


def test_alone_it_does_not_propose_to_train_without_torch(
    stands: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(here, "find_spec", lambda _: None)
    monkeypatch.setattr(here, "environment_here", lambda: None)

    assert main(["--json"]) == 0

    assert told(capsys)["next"] == ["yoked up HOST...", "yoked up ."]


def test_alone_it_says_what_is_done_and_what_is_next(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("yoked.toml").write_text(FLEET)
    note_passed(read_fleet(Path("yoked.toml")), "install", "2 hosts can train")

    assert main(["--json"]) == 0

    found = told(capsys)
    assert found["hosts"] == ["alpha", "beta"]
    assert {each["name"]: each["state"] for each in found["steps"]} == {
        "init": "done",
        "install": "done",
        "doctor": "waiting",
        "probe": "waiting",
        "plan": "waiting",
        "train": "waiting",
    }
    assert found["next"] == ["yoked up"]


def test_alone_its_next_lines_are_those_of_the_plan_until_the_fleet_is_measured_anew(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("yoked.toml").write_text(FLEET)
    fleet = read_fleet(Path("yoked.toml"))
    lines = ["yoked init alpha --fleet fewer.toml", "yoked train --fleet fewer.toml"]
    probe = path_for(fleet)
    probe.parent.mkdir(parents=True)
    probe.touch()
    for step in ("install", "doctor"):
        note_passed(fleet, step, "fine")
    note_passed(fleet, "plan", "alpha alone is faster", lines)

    assert main(["--json"]) == 0
    assert told(capsys)["next"] == lines

    later_s = time.time() + 60
    os.utime(probe, (later_s, later_s))
    assert main(["--json"]) == 0
    assert told(capsys)["next"] == ["yoked up"]


def test_alone_it_tells_of_a_file_with_flaws(
    stands: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("yoked.toml").write_text("[[host]]\nnam = 3\n")

    assert main([]) == 2

    assert "unknown key 'nam'" in capsys.readouterr().err

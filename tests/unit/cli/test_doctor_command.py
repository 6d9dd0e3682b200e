"""`yoked doctor` as it is typed: what it refuses, carries out, takes back, keeps and explains.

Looking and judging are stand-ins here: a fault is a file that should not be there.
"""

from __future__ import annotations

import getpass
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands import doctor
from yoked.cli.commands.doctor import DoctorFlags
from yoked.cli.main import main
from yoked.doctor.check import Check
from yoked.doctor.console import script
from yoked.errors import HostError, UsageError, YokedError
from yoked.fleet.file import load_fleet, read_fleet
from yoked.fleet.model import Fleet
from yoked.fleet.trust import remember
from yoked.records.examination import Examination, Finding, Fix, HostSeen, Need, Severity, World

FLEET = '[fleet]\nname = "home"\n[[host]]\nname = "."\ninterface = "lo"\naddress = "127.0.0.1"\n'


def examine(*, json_output: bool = False, **flags: Any) -> int:
    return doctor.command(flags=DoctorFlags(**flags), json_output=json_output)


class Fault:
    """Something wrong on this machine, as a file, and what to do about it."""

    def __init__(self, folder: Path, name: str, severity: Severity = "error", **fix: Any) -> None:
        self.severity: Severity = severity
        self.path = folder / name
        self.path.write_text("broken")
        self.fix = Fix(
            **{
                "host": ".",
                "command": f"mv {self.path} {self.path}.kept",
                "undo": f"mv {self.path}.kept {self.path}",
                **fix,
            }
        )

    @property
    def finding(self) -> Finding:
        return Finding(
            self.path.name, self.severity, (".",), f"{self.path}", "it breaks", (self.fix,)
        )


class Home:
    """A fleet of this machine, with faults."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = folder / "yoked.toml"
        self.fleet.write_text(FLEET)
        self.faults: list[Fault] = []
        self.looks: list[dict[str, Any]] = []

    def breaks(self, name: str, **fix: Any) -> Fault:
        self.faults.append(Fault(self.folder, name, **fix))
        return self.faults[-1]

    def look(self, fleet: Fleet, need: Need, **flags: Any) -> Examination:
        flags.pop("say")("looking")
        self.looks.append({**flags, "need": need})
        hosts = tuple(HostSeen(host.name, {}, facts={"uid": 1000}) for host in fleet.hosts)
        return Examination(hosts, (), World(True), need, quick=flags["quick"], took_s=0.1)

    def findings_of(self, examination: Examination) -> tuple[Finding, ...]:
        return tuple(fault.finding for fault in self.faults if fault.path.exists())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path)
    checks = tuple(
        Check(
            code=name,
            question="Is it?",
            reads=(),
            severity="error",
            saw="",
            why="",
            page="**Symptom.** It breaks.",
            look=lambda _: (),
            quick=True,
        )
        for name in ("own-name", "firewall")
    )
    monkeypatch.setattr("yoked.doctor.judge.look", found.look)
    monkeypatch.setattr("yoked.doctor.judge.findings_of", found.findings_of)
    monkeypatch.setattr("yoked.doctor.catalog.CHECKS", checks)
    monkeypatch.setattr("yoked.doctor.mending.CHECKS", checks)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A person at the terminal who answers so."""

    def give(*lines: str) -> None:
        stdin = io.StringIO("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    return give


def test_a_question_that_would_go_into_a_file_is_not_asked(
    home: Home, answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers("y")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)

    with pytest.raises(UsageError, match="--fix asks before each thing"):
        examine(fix=True)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_all_well_is_status_0_and_what_to_do_next(
    home: Home, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert examine() == 0

    said = capsys.readouterr().out
    assert said == snapshot


def test_an_error_is_status_1_and_names_what_mends_it(
    home: Home, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    fault = home.breaks("own-name")

    assert examine() == 1

    said = capsys.readouterr().out
    assert fault.fix.command in [line.strip() for line in said.splitlines()]
    assert said == snapshot
    assert fault.path.exists()


def test_what_needs_root_is_offered_with_sudo(
    home: Home, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    home.breaks("own-name", root=True)

    examine()

    assert capsys.readouterr().out == snapshot


def test_a_warning_is_mended_when_it_is_named(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = home.breaks("own-name", severity="warning")

    examine(fix=True, yes=True)

    said = capsys.readouterr().out
    assert fault.path.exists()
    assert "yoked doctor --fix --only own-name" in " ".join(said.split())

    main(["doctor", "--fix", "--yes", "--only", "own-name", "--only", "firewall"])

    assert not fault.path.exists()


def test_with_a_check_named_no_other_is_mended(home: Home) -> None:
    named, other = home.breaks("own-name"), home.breaks("firewall")

    examine(fix=True, yes=True, only=("own-name",))

    assert not named.path.exists()
    assert other.path.exists()


def test_what_only_a_person_can_do_is_not_offered(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.breaks("cable", by_hand=True)

    examine()

    assert "--fix" not in capsys.readouterr().out


def test_what_was_asked_for_is_what_is_looked_at_and_sudo_only_where_it_was(home: Home) -> None:
    examine(bandwidth=True)
    examine(quick=True)
    examine(depth=8)
    examine(sudo=True)

    assert [(look["quick"], look["bandwidth"], look["sudo"]) for look in home.looks] == [
        (False, True, False),
        (True, False, False),
        (False, False, False),
        (False, False, True),
    ]
    assert home.looks[0]["need"].checkpoint_bytes is None
    assert home.looks[2]["need"].checkpoint_bytes > 4 * 125_829_546


def test_json_is_one_object(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.breaks("own-name")

    assert main(["doctor", "--json"]) == 1

    found = told(capsys)
    assert found["ok"] is False
    assert found["findings"][0]["fix"][0]["host"] == "."


@pytest.mark.parametrize(
    "flags",
    [
        {"fix": True, "undo": True},
        {"fix": True, "from_file": Path("e.json")},
        {"explain": "x", "undo": True},
        {"explain": "x", "depth": 4},
        {"from_file": Path("e.json"), "data": Path("data")},
        {"undo": True, "yes": True, "bundle": Path("b.zip")},
        {"data": Path("nowhere")},
        {"undo": True, "sudo": True},
        {"only": ("own-name",)},
        {"fix": True, "yes": True, "only": ("own-nam",)},
        {"yes": True},
        {"quick": True, "bandwidth": True},
        {"depth": 0},
        {"bundle": Path("yoked.toml")},
        {"console": "x", "depth": 4},
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_looked_at(
    home: Home, flags: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        examine(**flags)
    assert str(caught.value) == snapshot
    assert home.looks == []


def test_folders_that_are_named_are_compared_on_all_hosts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.folder / "data").mkdir()
    (home.folder / "data" / "1.txt").write_text("one")
    judged: list[Examination] = []
    monkeypatch.setattr("yoked.doctor.judge.findings_of", lambda seen: judged.append(seen) or ())

    examine(data=Path("data"))

    (seen,) = judged
    assert seen.need.data is not None
    assert list(seen.need.data) == ["1.txt"]
    assert seen.hosts[0].health["data"] == seen.need.data


@pytest.mark.parametrize("flag", ["--fix", "--undo"])
def test_nothing_is_done_where_nobody_can_be_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = home.breaks("own-name")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    assert main(["doctor", flag]) == 2

    assert f"yoked doctor {flag} --yes" in capsys.readouterr().err
    assert fault.path.exists()
    assert home.looks == []


def test_with_consent_a_fix_is_carried_out_verified_and_told(
    home: Home, answers: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = home.breaks("own-name"), home.breaks("firewall")
    answers("n", "y")

    status = examine(fix=True)

    out, err = capsys.readouterr()
    assert status == 1
    assert (first.path.exists(), second.path.exists()) == (True, False)
    assert second.fix.command in err
    assert "own-name on .: declined" in out
    assert "firewall on .: fixed" in out
    assert "yoked doctor --undo" in out


def test_each_fix_is_verified_by_looking_again(home: Home) -> None:
    home.breaks("own-name")

    assert examine(fix=True, yes=True) == 0

    # At first, for the check alone, and at the end.
    assert [look["quick"] for look in home.looks] == [False, True, False]


def test_a_fix_that_does_not_help_is_told(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.breaks("own-name", command="true", undo=None)

    assert examine(fix=True, yes=True, json_output=True) == 1

    assert [(each["state"], each["commands"]) for each in told(capsys)["fixed"]] == [
        ("still there", ["true"])
    ]


def test_a_fix_that_fails_is_told_and_the_next_is_tried(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.breaks("own-name", command="echo no such name >&2; exit 4")
    home.breaks("firewall")

    examine(fix=True, yes=True, json_output=True)

    states = {each["check"]: (each["state"], each["said"]) for each in told(capsys)["fixed"]}
    assert states["own-name"][0] == "failed"
    assert "status 4: no such name" in states["own-name"][1]
    assert states["firewall"] == ("fixed", "")


def test_what_a_fix_writes_into_the_ssh_config_of_the_fleet_needs_no_second_consent(
    home: Home,
) -> None:
    config = home.folder / "ssh_config"
    config.write_text("Host attic\n")
    home.fleet.write_text(FLEET.replace("[[host]]", 'ssh_config = "ssh_config"\n[[host]]'))
    remember(read_fleet(home.fleet))
    fault = home.breaks("own-name")
    fault.fix = Fix(
        ".",
        f"echo '  HostName 10.0.0.1' >> {config} && mv {fault.path} {fault.path}.kept",
        undo=f"echo 'Host attic' > {config} && mv {fault.path}.kept {fault.path}",
    )

    fixed = examine(fix=True, yes=True)
    after_fix = load_fleet(home.fleet)
    undone = examine(undo=True, yes=True)

    assert (fixed, undone) == (0, 0)
    assert after_fix == load_fleet(home.fleet)


def test_what_one_fix_hid_is_mended_too(home: Home) -> None:
    home.breaks("own-name")
    hidden = home.folder / "firewall"
    home.faults[0].fix = Fix(
        ".", f"rm {home.faults[0].path}; touch {hidden}", undo=f"touch {home.faults[0].path}"
    )
    late = Fault(home.folder, "firewall")
    late.path.unlink()
    home.faults.append(late)

    assert examine(fix=True, yes=True) == 0

    assert not hidden.exists()


def test_what_another_fix_mended_is_not_mended_twice(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = home.breaks("own-name"), home.breaks("firewall")
    first.fix = Fix(".", f"rm {first.path} {second.path}")

    assert examine(fix=True, yes=True, json_output=True) == 0

    assert [each["check"] for each in told(capsys)["fixed"]] == ["own-name"]


def test_undo_takes_back_what_was_done_newest_first(
    home: Home, answers: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [home.breaks("own-name"), home.breaks("firewall")]
    examine(fix=True, yes=True)
    assert not any(fault.path.exists() for fault in faults)
    capsys.readouterr()
    answers("y", "y")

    assert examine(undo=True) == 0

    out, err = capsys.readouterr()
    assert all(fault.path.exists() for fault in faults)
    assert out.startswith("2 of 2 taken back")
    assert err.index("for firewall") < err.index("for own-name")


def test_what_is_older_stays_when_something_newer_is_not_taken_back(
    home: Home,
    answers: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    faults = [home.breaks("own-name"), home.breaks("firewall")]
    examine(fix=True, yes=True)
    capsys.readouterr()
    answers("n")

    assert examine(undo=True, json_output=True) == 1

    assert [each["why"] for each in told(capsys)["left"]] == snapshot
    assert not any(fault.path.exists() for fault in faults)


def test_with_nothing_to_take_back_undo_is_well(
    home: Home, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert examine(undo=True, yes=True) == 0
    assert capsys.readouterr().out == snapshot


def test_a_host_that_left_the_fleet_is_named(
    home: Home, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    from yoked.doctor.judge import connect

    with pytest.raises(HostError) as caught:
        connect(Fleet("home", (), home.fleet), "cellar")
    assert str(caught.value) == snapshot


def test_a_check_is_explained_by_its_page(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(explain="firewall") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said == "firewall: Is it? Symptom. It breaks."

    examine(explain="firewall", json_output=True)
    assert told(capsys)["page"] == "**Symptom.** It breaks."


def test_the_script_for_a_console_is_printed_with_its_account_and_nothing_else(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(console=".") == 0

    said = capsys.readouterr()
    assert said.out == script(getpass.getuser())
    assert "for root's shell" in said.err
    assert home.looks == []

    examine(console=".", json_output=True)
    assert told(capsys) == {"host": ".", "script": said.out}


def test_of_a_host_that_is_not_in_the_fleet_there_is_no_script(home: Home) -> None:
    with pytest.raises(UsageError) as caught:
        examine(console="cellar")
    assert "." in caught.value.fix[0]


def test_a_wrong_name_gets_the_nearest(home: Home, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        examine(explain="own-nam")
    assert str(caught.value) == snapshot
    assert caught.value.fix == ("--explain own-name",)


def test_of_a_name_that_no_check_is_near_none_is_proposed(home: Home) -> None:
    with pytest.raises(UsageError) as caught:
        examine(explain="qwerty")

    assert caught.value.fix == ("docs/reference/checks.md lists them",)


def test_a_bundle_is_judged_again_without_any_host(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = home.breaks("own-name")
    assert examine(bundle=Path("b.zip")) == 1
    assert "kept in b.zip" in capsys.readouterr().out
    looks = len(home.looks)

    status = examine(from_file=Path("b.zip"))

    said = capsys.readouterr().out
    assert status == 1
    assert said.startswith("fleet b.zip: 1 error")
    assert fault.fix.command in said
    assert "next:" not in said
    assert len(home.looks) == looks


def test_a_saved_file_of_another_kind_is_refused(home: Home, snapshot: SnapshotAssertion) -> None:
    (home.folder / "e.json").write_text('{"hosts": [{"who": "attic"}]}')

    with pytest.raises(YokedError) as caught:
        examine(from_file=home.folder / "e.json")
    assert str(caught.value) == snapshot
    assert "--bundle" in caught.value.fix[0]

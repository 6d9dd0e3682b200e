"""Fixes: what may be carried out, what is typed, and that all of it can be taken back."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.doctor.fixing import (
    FixJournal,
    FixPlan,
    ShellResult,
    Shells,
    apply_fixes,
    as_typed,
    is_root,
    plan_fixes,
    still_there,
    undo_fix,
)
from yoked.errors import HostError
from yoked.records.examination import Examination, Finding, Fix, HostSeen, SshFailure
from yoked.remote.transport import connect_here

FLEET = Path("/somewhere/yoked.toml")


def finding(*fixes: Fix, check: str = "firewall", **more: Any) -> Finding:
    return Finding(check, "error", more.pop("hosts", ("attic",)), "seen", "why", fixes, **more)


def seen(*, uid: int = 1000) -> Examination:
    attic = HostSeen("attic", {}, facts={"uid": uid})
    cellar = HostSeen("cellar", {}, failure=SshFailure("timeout", "timed out"))
    return Examination((attic, cellar))


class Told:
    """A shell that only notes what it is told; it fails at the lines of `bad`."""

    def __init__(self, *bad: str) -> None:
        self.lines: list[tuple[str, str, bool]] = []
        self._bad = bad

    def __call__(self, host: str, line: str, *, root: bool) -> ShellResult:
        self.lines.append((host, line, root))
        return ShellResult(line not in self._bad, "it cannot" if line in self._bad else "")


@pytest.fixture
def journal(tmp_path: Path) -> FixJournal:
    return FixJournal(tmp_path / "fixes.jsonl")


@pytest.mark.parametrize(
    ("line", "root_there", "typed"),
    [
        ("ufw allow 22", False, "sudo ufw allow 22"),
        ("ufw allow 22", True, "ufw allow 22"),
        ("a && b", True, "a && b"),
        ("a && b", False, "sudo sh -c 'a && b'"),
        ("echo 1 > /proc/x", False, "sudo sh -c 'echo 1 > /proc/x'"),
        ("A=1 b", False, "sudo sh -c 'A=1 b'"),
        ("sed -i 's/a;b/c/' /etc/hosts", False, "sudo sed -i 's/a;b/c/' /etc/hosts"),
        ("echo 'it is", False, "sudo sh -c 'echo '\"'\"'it is'"),
    ],
)
def test_a_line_for_root_is_typed_with_sudo_where_nobody_is_root(
    line: str, root_there: bool, typed: str
) -> None:
    assert as_typed(Fix("attic", line, root=True), root_there=root_there) == typed


def test_a_line_for_the_user_is_typed_as_it_is() -> None:
    assert as_typed(Fix("attic", "a && sudo b"), root_there=False) == "a && sudo b"
    assert as_typed(Fix("attic", "plug it in", root=True, by_hand=True), root_there=False) == (
        "plug it in"
    )


@given(st.lists(st.sampled_from(["a", "&&", "'x y'", ";", "|", ">f", "$(b)", '"c"']), min_size=1))
@settings(max_examples=50)
def test_what_is_typed_hands_all_of_a_line_to_root(words: list[str]) -> None:
    line = " ".join(["echo", *words])

    typed = as_typed(Fix("attic", line, root=True), root_there=False)

    if typed.startswith("sudo sh -c "):
        assert shlex.split(typed) == ["sudo", "sh", "-c", line]
    else:
        assert typed == f"sudo {line}"
        assert not {"&&", ";", "|", ">f"} & set(words)


@pytest.mark.parametrize(("uid", "expected"), [(0, True), (7, False)])
def test_who_is_root_has_the_number_0(uid: int, expected: bool) -> None:
    assert is_root(seen(uid=uid), "attic") is expected
    assert is_root(seen(), "cellar") is False
    assert is_root(seen(), "nobody") is False
    assert is_root(seen(), "") is (os.getuid() == 0)


@pytest.mark.parametrize(
    ("fixes", "sudo", "left"),
    [
        ((Fix("attic", "true"),), False, ""),
        ((), True, "no line"),
        ((Fix("attic", "true"), Fix("attic", "plug it in", by_hand=True)), True, "a person"),
        ((Fix("cellar", "true"),), True, "no agent on cellar"),
        ((Fix("attic", "true", root=True),), False, "needs root on attic"),
        ((Fix("attic", "true", root=True),), True, ""),
    ],
)
def test_what_cannot_be_carried_out_is_left_with_the_reason(
    fixes: tuple[Fix, ...], sudo: bool, left: str
) -> None:
    (plan,) = plan_fixes([finding(*fixes)], seen(), sudo=sudo)

    assert left in plan.left
    assert bool(plan.left) == bool(left)


def test_a_warning_is_left_unless_its_check_is_named(snapshot: SnapshotAssertion) -> None:
    asleep = replace(finding(Fix("attic", "true"), check="sleep"), severity="warning")
    broken = finding(Fix("attic", "true"))

    of_all = plan_fixes([broken, asleep], seen(), sudo=True)
    of_one = plan_fixes([broken, asleep], seen(), sudo=True, only=("sleep",))

    assert [each.left for each in of_all] == snapshot
    assert [(each.finding.check, each.left) for each in of_one] == [("sleep", "")]


def test_where_the_user_is_root_nothing_needs_sudo() -> None:
    (plan,) = plan_fixes([finding(Fix("attic", "true", root=True))], seen(uid=0), sudo=False)

    assert plan.left == ""


def test_what_is_about_to_be_done_is_on_disk_before_it_is_done(journal: FixJournal) -> None:
    known: list[str] = []

    def shell(host: str, line: str, *, root: bool) -> ShellResult:
        known.extend(done.command for done in FixJournal(journal.path).standing(FLEET))
        raise KeyboardInterrupt

    plan = FixPlan(finding(Fix("attic", "a", root=True, undo="b")))
    with pytest.raises(KeyboardInterrupt):
        apply_fixes(plan, shell, journal, FLEET)

    assert known == ["a"]
    assert [done.undo for done in journal.standing(FLEET)] == ["b"]


def test_what_was_done_is_taken_back_newest_first_and_once(journal: FixJournal) -> None:
    shell = Told()
    first = finding(Fix("attic", "a", undo="-a"), Fix("attic", "look"), Fix("", "b", undo="-b"))
    second = finding(Fix("attic", "c", root=True, undo="-c"))
    for each in (first, second):
        assert apply_fixes(FixPlan(each), shell, journal, FLEET).problem == ""
    shell.lines.clear()

    for done in journal.standing(FLEET):
        assert undo_fix(done, shell, journal) == ""

    assert shell.lines == [("attic", "-c", True), ("", "-b", False), ("attic", "-a", False)]
    assert journal.standing(FLEET) == []


def test_a_line_that_fails_ends_its_repair_and_is_nothing_to_take_back(journal: FixJournal) -> None:
    shell = Told("b")
    plan = FixPlan(finding(*(Fix("attic", line, undo=f"-{line}") for line in "abc")))

    carried = apply_fixes(plan, shell, journal, FLEET)

    assert carried.problem == "b: it cannot"
    assert [line for _, line, _ in shell.lines] == ["a", "b"]
    assert [done.command for done in journal.standing(FLEET)] == ["a"]


def test_a_host_that_falls_silent_may_have_done_it(
    journal: FixJournal, snapshot: SnapshotAssertion
) -> None:

    def silent(host: str, line: str, *, root: bool) -> ShellResult:
        raise HostError("attic gave no answer")

    carried = apply_fixes(FixPlan(finding(Fix("attic", "a", undo="-a"))), silent, journal, FLEET)

    assert carried.problem == snapshot
    (done,) = journal.standing(FLEET)
    assert undo_fix(done, silent, journal) == snapshot
    assert journal.standing(FLEET) == [done]


def test_fleets_have_books_of_their_own(journal: FixJournal, tmp_path: Path) -> None:
    apply_fixes(FixPlan(finding(Fix("attic", "a", undo="-a"))), Told(), journal, FLEET)

    assert journal.standing(tmp_path / "yoked.toml") == []
    assert len(journal.standing(FLEET)) == 1


def test_an_undo_that_fails_stays_to_be_done(journal: FixJournal) -> None:
    apply_fixes(FixPlan(finding(Fix("attic", "a", undo="-a"))), Told(), journal, FLEET)
    (done,) = journal.standing(FLEET)

    assert undo_fix(done, Told("-a"), journal) == "it cannot"
    assert journal.standing(FLEET) == [done]


@pytest.mark.parametrize("host", ["", "attic"])
def test_lines_run_here_and_on_hosts_and_say_how_they_ended(tmp_path: Path, host: str) -> None:
    with Shells(connect_here) as shells:
        well = shells(host, f"umask 077; echo hello > {tmp_path}/made; echo seen", root=False)
        ill = shells(host, "echo no such thing >&2; exit 3", root=False)
        more = shells(host, "printf 'denied\\n   ask dmesg(1)\\n' >&2; exit 32", root=False)

    assert well == ShellResult(True, "seen")
    assert (tmp_path / "made").read_text() == "hello\n"
    assert ill == ShellResult(False, "it ended with status 3: no such thing")
    assert more == ShellResult(False, "it ended with status 32: denied")


def fake_sudo(folder: Path) -> Path:
    """A sudo that says that it was asked, and does it."""
    program = folder / "sudo"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {folder}/asked\nshift\nexec "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.parametrize(("uid", "asked"), [(0, False), (1000, True)])
def test_root_is_come_by_with_sudo_unless_the_user_is_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, asked: bool
) -> None:
    fake_sudo(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "getuid", lambda: uid)

    with Shells(_nobody) as shells:
        said = shells("", "echo done", root=True)

    assert said == ShellResult(True, "done")
    assert (tmp_path / "asked").exists() == asked
    if asked:
        assert (tmp_path / "asked").read_text() == "-n"


def test_a_host_without_sudo_did_nothing(
    journal: FixJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with Shells(_nobody) as shells:
        carried = apply_fixes(
            FixPlan(finding(Fix("", "true", root=True, undo="false"))), shells, journal, FLEET
        )

    assert "sudo" in carried.problem
    assert "not found" in carried.problem
    assert journal.standing(FLEET) == []


def _nobody(name: str) -> Any:
    raise AssertionError(name)


def test_the_controllers_own_lines_find_its_own_yoked(tmp_path: Path) -> None:
    with Shells(_nobody) as shells:
        said = shells("", "command -v python3 python | head -1", root=False)

    assert said.ok
    assert Path(said.text).parent == Path(sys.executable).parent


def test_a_finding_is_still_there_where_its_check_says_so_of_the_same_place() -> None:
    wanted = finding(link=("attic", "cellar"))
    back = finding(link=("cellar", "attic"))
    other = finding(check="names")
    hidden = finding(check="names", follows=(wanted,))

    assert still_there(wanted, [back, other]) is None
    assert still_there(wanted, [back, hidden]) == wanted
    assert still_there(finding(), [finding(hosts=("cellar",))]) is None
    assert still_there(finding(), [finding(hosts=("cellar", "attic"))]) is not None

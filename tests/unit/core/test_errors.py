"""Every failure that a program can meet has a code and a fix."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.cli.argv import _OF_A_FLEET
from yoked.cli.main import main
from yoked.cli.reference import command_reference
from yoked.core.faults import FAULTS
from yoked.errors import HostError, UsageError, YokedError, error_kinds


def test_each_kind_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in error_kinds()]

    assert len(codes) >= 14
    assert "" not in codes
    assert len({*codes, *FAULTS}) == len(codes) + len(FAULTS)


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["train", "--no-such-flag"], "--no-such-flag"),
        (["train", "--depth", "four"], "--depth"),
        (["train", "--depth", "0"], "--depth"),
        (["trian"], None),
        (["plan", "--link", "1gbit"], "--link"),
    ],
)
def test_wrong_usage_names_its_flag_and_the_help(
    argv: list[str], flag: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*argv, "--json"])

    error = conforms("usage", json.loads(capsys.readouterr().out))["error"]
    assert (status, error["code"], error["params"]) == (2, "usage", {"flag": flag})
    assert error["fix"]


@pytest.mark.parametrize("kind", error_kinds(), ids=lambda kind: kind.__name__)
def test_an_error_without_a_fix_of_its_own_says_what_usually_helps(
    kind: type[YokedError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise kind("it is gone")

    monkeypatch.setattr("yoked.cli.main.build_app", lambda: fails)
    main(["train", "--json"])

    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == kind.code
    assert error["fix"][0].startswith(("yoked ", "take "))


def test_the_flag_of_wrong_usage_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(UsageError("--ranks 0: one at least")))

    assert (error.code, error.params) == ("usage", {"flag": "--ranks"})


def test_a_bug_and_an_interrupt_have_codes_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for problem, code in ((ZeroDivisionError("oops"), "bug"), (KeyboardInterrupt(), "interrupted")):

        def fails(*_: object, problem: BaseException = problem, **__: object) -> int:
            raise problem

        monkeypatch.setattr("yoked.cli.main.build_app", lambda fails=fails: fails)
        main(["train", "--json"])
        error = conforms(code, json.loads(capsys.readouterr().out))["error"]
        assert (error["code"], bool(error["fix"]), error["params"]) == (code, True, {})


class StrictHostError(HostError):
    pass


def test_the_kind_that_a_program_reads_is_one_of_the_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise StrictHostError("it is gone")

    monkeypatch.setattr("yoked.cli.main.build_app", lambda: fails)
    main(["train", "--json"])

    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "HostError"


@pytest.mark.parametrize("words", [["plan", "--params", "1M"], ["plan", "--help"], ["trian"]])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_told_on_stderr(
    words: list[str],
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        status = main([*words, *flags])

    assert (status, capsys.readouterr().err) == snapshot


@pytest.mark.parametrize(
    ("fix", "words", "line"),
    [
        ("yoked runs", ["attach", "x"], "yoked runs"),
        (
            "yoked runs",
            ["attach", "x", "--fleet", "my home.toml"],
            "yoked runs --fleet 'my home.toml'",
        ),
        ("yoked runs    lists them", ["fetch", "--fleet=f"], "yoked runs --fleet f    lists them"),
        ("yoked run -- a.py", ["run", "--fleet", "f"], "yoked run --fleet f -- a.py"),
        ("yoked data push x", ["train", "--fleet", "f"], "yoked data push x --fleet f"),
        ("yoked data list", ["train", "--fleet", "f"], "yoked data list"),
        ("yoked probe --fleet f", ["plan", "--fleet", "f"], "yoked probe --fleet f"),
        ("yoked logs --help", ["logs", "--fleet", "f"], "yoked logs --help"),
        ("yoked sample x", ["fetch", "--fleet", "f"], "yoked sample x"),
        ("--tail 20", ["logs", "--fleet", "f"], "--tail 20"),
        ("yoked runs", ["run", "--", "a.py", "--fleet", "f"], "yoked runs"),
    ],
)
def test_a_line_of_a_fix_is_about_the_hosts_of_the_command(
    fix: str,
    words: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise YokedError("it is gone", fix=fix)

    monkeypatch.setattr("yoked.cli.main.build_app", lambda: fails)
    main([words[0], "--json", *words[1:]])

    assert json.loads(capsys.readouterr().out)["error"]["fix"] == [line]


def test_each_command_that_takes_a_fleet_is_known_to_do_so() -> None:
    pages = re.split(r"^#{2,3} yoked ", command_reference(), flags=re.MULTILINE)
    takes = {page.partition("\n")[0] for page in pages if "* `--fleet PATH`" in page}

    assert takes == _OF_A_FLEET

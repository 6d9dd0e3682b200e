"""Every failure that a program can meet has a code and a fix."""

from __future__ import annotations

import json
import pickle

import pytest
from tests.schemas import conforms

from yoked.cli.main import main
from yoked.core.faults import FAULTS
from yoked.errors import UsageError, YokedError, error_kinds


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

"""What `yoked run` makes of its command line; the run itself: tests/distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yoked.cli.main import main
from yoked.errors import YokedError
from yoked.fleet.variables import carried
from yoked.launch.start import JobRequest


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobRequest]:
    """What would be started by a command line, in a folder with a program."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    requests: list[JobRequest] = []

    def run_job(request: JobRequest, *_: Any, **__: Any) -> None:
        requests.append(request)
        raise YokedError("that is enough")

    monkeypatch.setattr("yoked.workflows.fleet_job.run_job", run_job)

    def ask(*words: str) -> JobRequest:
        assert main(["run", *words]) == 1
        return requests[-1]

    return ask


TWO_HOSTS = """
[fleet]
name = "home"
[[host]]
name = "."
[[host]]
name = "attic"
"""


def test_variables_for_programs_go_along_and_secrets_where_they_are_asked_for(
    asked: Callable[..., JobRequest],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("yoked.toml").write_text(TWO_HOSTS)
    for name in carried(os.environ):
        monkeypatch.delenv(name)
    for name, value in {"WANDB_MODE": "offline", "HF_TOKEN": "hf_1", "WANDB_API_KEY": "2"}.items():
        monkeypatch.setenv(name, value)

    plain = asked("train.py")
    said = capsys.readouterr().err
    with_token = asked("--env", "HF_TOKEN", "--env", "WANDB_MODE=online", "train.py")

    assert (plain.env, plain.withheld) == ({"WANDB_MODE": "offline"}, ["HF_TOKEN", "WANDB_API_KEY"])
    assert "from this shell to the ranks of all hosts: WANDB_MODE" in said
    assert "--env HF_TOKEN --env WANDB_API_KEY" in said
    assert "hf_1" not in said
    assert with_token.env == {"HF_TOKEN": "hf_1", "WANDB_MODE": "online"}
    assert with_token.withheld == ["WANDB_API_KEY"]


def test_on_this_machine_alone_ranks_have_the_shells_own(
    asked: Callable[..., JobRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    monkeypatch.setenv("WANDB_MODE", "offline")

    alone = asked("train.py")

    assert (alone.env, alone.withheld) == ({}, [])


@pytest.mark.parametrize("setting", ["NO_SUCH_VARIABLE_HERE", "1=2", "=x", "a-b=c"])
def test_a_setting_that_names_no_variable_is_refused(
    asked: Callable[..., JobRequest], capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    assert main(["run", "--env", setting, "train.py"]) == 2

    assert f"--env {setting}" in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize(
    "words",
    [("--resume-args", "--resume --step 3"), ("--resume-args=--resume --step 3",)],
)
def test_what_resumes_a_program_may_begin_with_a_flag(
    asked: Callable[..., JobRequest], words: tuple[str, ...]
) -> None:
    program = asked(*words, "--restarts", "1", "train.py", "--lr", "1").program

    assert program.resume_args == ("--resume", "--step", "3")
    assert program.args == ("--lr", "1")


def test_an_open_quote_is_no_bug_of_yoked(
    asked: Callable[..., JobRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--resume-args", "'--resume", "train.py"]) == 2

    said = capsys.readouterr().err
    assert "--resume-args" in said
    assert 'fix: --resume-args "--resume"' in said

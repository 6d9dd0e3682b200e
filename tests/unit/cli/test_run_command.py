"""What `yoked run` makes of its command line; the run itself: tests/distributed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yoked.cli.main import main
from yoked.errors import YokedError
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

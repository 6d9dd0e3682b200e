from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.agent.verdict import failed
from yoked.cli.output import Output, as_called
from yoked.console import StageProgress
from yoked.errors import DataError, JobError
from yoked.table import table


def program(folder: Path) -> Path:
    """A `yoked` that could be started."""
    folder.mkdir()
    path = folder / "yoked"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def off_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This process was started as a `yoked` that is not on the PATH."""
    called = str(program(tmp_path / "my venv"))
    monkeypatch.setattr(sys, "argv", [called, "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return called


def test_a_command_to_paste_has_the_path_by_which_yoked_was_called(off_the_path: str) -> None:
    assert as_called("yoked plot demo") == f"'{off_the_path}' plot demo"


def test_the_path_stays_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["bin/yoked"])

    assert as_called("yoked plan") == "bin/yoked plan"


def test_the_name_alone_does_where_it_means_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = program(tmp_path / "venv")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "yoked").symlink_to(called)
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setenv("PATH", str(bin_folder))

    assert as_called("yoked plan") == "yoked plan"


def test_the_path_is_said_where_the_name_means_another_environments_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, other = program(tmp_path / "venv"), program(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setenv("PATH", str(other.parent))

    assert as_called("yoked plan") == f"{called} plan"


@pytest.mark.usefixtures("off_the_path")
@pytest.mark.parametrize("line", ["sudo modprobe sch_netem", "give it --data FOLDER"])
def test_sentences_and_other_programs_stay_as_they_are(line: str) -> None:
    assert as_called(line) == line


@pytest.mark.parametrize("argv0", ["yoked", "-c", "/usr/bin/pytest", ""])
def test_without_a_path_of_ours_the_name_is_said(
    argv0: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argv0])
    monkeypatch.setenv("PATH", "")

    assert as_called("yoked plan") == "yoked plan"


def test_results_and_errors_are_shown_with_the_path(
    off_the_path: str, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    output = Output(json_mode=False)

    output.result({}, verdict="done", next_commands=["yoked plan"])
    output.error(DataError("the folder is empty", fix=["yoked data list", "or wait"]))

    said = capsys.readouterr()
    assert said.out == f"done\nnext: '{off_the_path}' plan\n"
    assert said.err == snapshot


def test_programs_get_the_name(off_the_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(json_mode=True).error(DataError("the folder is empty", fix="yoked data list"))

    said = json.loads(capsys.readouterr().out)
    assert said["error"]["fix"] == ["yoked data list"]
    assert off_the_path not in json.dumps(said)


HOSTILE = "attic\x1b]0;title\x07\x1b[2J\x9b1A\x7f\u202e [red]:bomb:[/red] \udcff"
SHOWN = r"attic\x1b]0;title\x07\x1b[2J\x9b1A\x7f\u202e [red]:bomb:[/red] \udcff"


def test_names_messages_and_findings_show_escape_sequences_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output(json_mode=False)

    output.note(HOSTILE)
    output.error(DataError(HOSTILE, fix=HOSTILE))
    output.result({}, verdict=HOSTILE, evidence=[HOSTILE], next_commands=[HOSTILE])

    said = capsys.readouterr()
    assert said.err == f"note: {SHOWN}\n{SHOWN}\nfix: {SHOWN}\n"
    assert said.out == f"{SHOWN}\n  {SHOWN}\nnext: {SHOWN}\n"


def test_a_table_shows_names_as_they_are_and_controls_as_text() -> None:
    lines = table(("host", "CPU"), [(HOSTILE, "[bold]8[/bold]"), ("garage\x85x", "4")])

    assert [line.split("  ")[0] for line in lines] == ["host", SHOWN, r"garage\x85x"]
    assert lines[1].endswith("[bold]8[/bold]")


def test_a_table_is_no_wider_than_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")

    lines = table(
        ["host", "CPU", "cores", "torch"], [["attic", "a CPU of many words", "8", "2.13"]]
    )

    # They are indented by two.
    assert max(map(len, lines)) <= 38
    assert "attic" in lines[1]


def test_a_line_of_progress_shows_controls_as_text() -> None:
    file = io.StringIO()
    progress = StageProgress(Console(file=file, force_terminal=True, width=200))

    progress.update(f"from {HOSTILE}", 1, 2, "bytes")

    assert file.getvalue().startswith(f"\rfrom {SHOWN}: ")


class CrashError(Exception):
    verdict: Any = None


@pytest.mark.parametrize("problem", [JobError("run night failed", fix="x"), CrashError("oops")])
def test_programs_get_the_verdict_of_a_run_beside_its_error(
    problem: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = {"host": "beta", "rank": 1, "cause": "rank-killed", "what": "killed by SIGKILL"}
    problem.verdict = failed("night", failure)
    output = Output(json_mode=True)

    _ = output.bug(problem) if isinstance(problem, CrashError) else output.error(problem)

    told = conforms("error", json.loads(capsys.readouterr().out))
    del told["error"]
    assert told == conforms("diagnose", dict(problem.verdict))


def test_a_bugs_trace_shows_escape_sequences_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json_mode=False).bug(ValueError(HOSTILE))

    assert f"ValueError: {SHOWN}\n" in capsys.readouterr().err


def test_json_carries_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json_mode=True).result({"name": HOSTILE}, verdict="")

    said = capsys.readouterr().out
    assert said.rstrip("\n").isascii()
    assert said.rstrip("\n").isprintable()
    assert json.loads(said) == {"name": HOSTILE}


def test_a_ranks_output_keeps_its_colours_and_loses_what_acts_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output(json_mode=False)

    output.rank_output("out", "\x1b[32mstep 1\x1b[0m\r50%\x1b[K\x1b]52;c;")
    output.rank_output("err", "\x1b[2Jlost\n")
    output.rank_output("out", "AAAA\x07\n")

    said = capsys.readouterr()
    assert said.out == "\x1b[32mstep 1\x1b[0m\r50%\x1b[K\n"
    assert said.err == "lost\n"


def test_a_colour_that_a_rank_left_on_ends_before_words_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output(json_mode=False)

    output.rank_output("out", "\x1b[31mred\n")
    output.result({}, verdict="done")

    assert capsys.readouterr().out == "\x1b[31mred\n\x1b[0mdone\n"


@pytest.mark.parametrize(("stream", "json_mode"), [("err", False), ("out", True), ("err", True)])
def test_a_colour_ends_on_the_stream_on_which_it_was_shown(
    stream: str, json_mode: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(json_mode=json_mode)

    output.rank_output(stream, "\x1b[31mred\n")
    output.note("beta is back")
    output.result({"ok": True}, verdict="done")

    said = capsys.readouterr()
    assert said.err == "\x1b[31mred\n\x1b[0mnote: beta is back\n"
    assert said.out == ('{"ok": true}\n' if json_mode else "done\n")


def test_raw_output_is_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(json_mode=False, raw=True)

    output.rank_output("out", HOSTILE.removesuffix("\udcff"))

    assert capsys.readouterr().out == HOSTILE.removesuffix("\udcff")

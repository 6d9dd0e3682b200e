from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from yoked.cli.output import Output, as_called
from yoked.errors import DataError


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
    off_the_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(json_mode=False)

    output.result({}, verdict="done", next_commands=["yoked plan"])
    output.error(DataError("the folder is empty", fix=["yoked data list", "or wait"]))

    said = capsys.readouterr()
    assert said.out == f"done\nnext: '{off_the_path}' plan\n"
    assert said.err == f"the folder is empty\nfix: '{off_the_path}' data list\nfix: or wait\n"


def test_programs_get_the_name(off_the_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(json_mode=True).error(DataError("the folder is empty", fix="yoked data list"))

    said = json.loads(capsys.readouterr().out)
    assert said["error"]["fix"] == ["yoked data list"]
    assert off_the_path not in json.dumps(said)

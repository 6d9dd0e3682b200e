"""A login that works without an agent; the ssh is made up, and runs what it is told by bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.test_sshtry import an_ssh

from yoked.doctor import sshinside
from yoked.doctor.sshinside import blamed, heard, of_interpreter, of_start_files, with_reason
from yoked.records.examination import HostSeen, SshFailure

DIED = SshFailure("python", "ValueError: invalid literal", cause="died")


def answer(how: str, proof: str = "threads", words: str = "ulimit -s 9") -> dict[str, Any]:
    command = {"file": "/home/ada/.bashrc", "line": 3, "words": words}
    return {"how": how, "proof": proof, "command": command}


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("threads", "and no program can start a thread behind it"),
        ("waits", "and waits there"),
        ("inside", "puts each login into another program, and in it no program can start a thread"),
    ],
)
def test_the_line_of_a_start_file_takes_the_place_of_its_symptom(how: str, ending: str) -> None:
    failure = blamed(DIED, answer(how))

    assert (failure.kind, failure.cause) == ("shell", "start-file")
    assert failure.about == "/home/ada/.bashrc:3"
    assert failure.text.startswith("/home/ada/.bashrc, line 3, runs `ulimit -s 9`, ")
    assert failure.text.endswith(ending)


def test_where_no_line_is_to_blame_the_failure_stays_as_it_is() -> None:
    assert blamed(DIED, {"how": None, "proof": None, "command": None}) == DIED
    assert blamed(DIED, {}) == DIED


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_the_program_comes_through_a_shell_without_what_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    program = tmp_path / "source.py"
    said = answer("reads", "reads")
    program.write_text(
        "import os, sys\nassert sys.argv[1] and not os.environ.get('KEPT_FROM_IT') or "
        f"{shell != 'bash'}\nprint('noise'); print(sys.argv[1], {json.dumps(json.dumps(said))})\n"
    )
    monkeypatch.setattr(sshinside, "_SOURCE", program)
    monkeypatch.setenv("KEPT_FROM_IT", "x")
    # What would be sent to the host is eaten, and the last word is the command.
    an_ssh(tmp_path, monkeypatch, f'for each; do :; done; read -r X; exec {shell} -c "$each"')

    failure = of_start_files(DIED, "attic", None)

    assert failure.about == "/home/ada/.bashrc:3"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_an_environment_with_anothers_library_is_told_though_the_first_python_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    settings = folder / "pyvenv.cfg"
    settings.write_text(f"home = {tmp_path}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    an_ssh(tmp_path, monkeypatch, 'for each; do :; done; exec bash -c "$each"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    failure = of_interpreter(DIED, "attic", None, f"{folder}/bin/python")

    assert (failure.cause, failure.about) == ("other-home", f"{folder}/bin/python")
    assert f"{settings} has it take the library of {tmp_path}, and it is of " in failure.text


@pytest.mark.parametrize(
    ("owner", "cause"), [("root", "barred"), ("ada", "not-executable")], ids=["other", "own"]
)
def test_whom_a_place_turns_away_that_is_not_his_is_told_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, owner: str, cause: str
) -> None:
    place = {"place": "/root", "owner": owner, "mode": "0700", "user": "ada", "lacks": "x"}
    monkeypatch.setattr(sshinside, "_ask", lambda *args: {"barred": place, "home": None})
    failed = SshFailure("python", "cannot execute", cause="not-executable", about="/v/bin/python")

    failure = of_interpreter(failed, "attic", None, "/v/bin/python")

    assert failure.cause == cause
    assert ("/root is root's (mode 0700), and ada" in failure.text) is (owner == "root")


@pytest.mark.parametrize("says", ["echo nothing", "echo TOKEN {}", "exit 255"])
def test_a_host_that_tells_nothing_of_use_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    an_ssh(tmp_path, monkeypatch, says)
    monkeypatch.setattr(sshinside, "_token", lambda: "TOKEN")

    assert of_start_files(DIED, "attic", None) == DIED


def test_what_a_shell_prints_and_what_takes_long_is_told_apart() -> None:
    prints, soon = answer("prints", "prints", "echo hi"), answer("soon", "soon", "sleep 6")

    assert heard({"login_shell": "/bin/bash"}, "hi", {"prints": prints, "soon": soon}) == {
        "login_shell": "/bin/bash",
        "sources_noise": True,
        "searched": True,
        "prints": prints["command"],
        "takes_long": soon["command"],
    }
    # What is said of a file that waits is not that it prints.
    waits = heard({}, "hi", {"prints": answer("waits", "prints")})
    assert (waits["searched"], waits["prints"], waits["takes_long"]) == (True, None, None)
    assert heard({}, "", {})["searched"] is False


def test_only_a_host_whose_agent_fell_silent_is_asked_for_its_start_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sshinside, "_ask", lambda *args: answer("threads"))
    silent = SshFailure("timeout", "its agent came up, and then fell silent", cause="silent")
    seen = HostSeen("attic", {}, silent)

    told = with_reason(seen, None).failure

    assert told is not None
    assert told.cause == "start-file"
    for other in (replace(seen, failure=None), replace(seen, failure=DIED)):
        assert with_reason(other, None) == other

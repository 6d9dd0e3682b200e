"""What keeps a Python from working is found by trying; here with real ones, broken on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import culprits
from yoked.agent.culprits import answer_culprits

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(culprits, "_IMPORT", "import json")


def look(python: str | Path = sys.executable, said: str = "") -> dict[str, Any]:
    return answer_culprits(FakeCall(python=str(python), said=said, limit_s=LIMIT_S))


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment: its folder of packages."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def python_of(packages: Path) -> Path:
    return packages.parents[2] / "bin" / "python"


def test_what_works_has_no_culprit() -> None:
    assert look() == {"what": None, "late": False, "variables": [], "files": [], "home": None}


def test_a_variable_that_python_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random0")

    found = look()

    assert found["what"] == "start"
    assert [each["name"] for each in found["variables"]] == ["PYTHONHASHSEED"]


@pytest.mark.parametrize("said", ["", "ValueError: Invalid log settings: +dynamo,inductr"])
def test_a_variable_that_an_import_trips_over_is_named(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os, sys; sys.exit('inductr' in os.environ.get('TORCH_LOGS', ''))"
    monkeypatch.setattr(culprits, "_IMPORT", program)
    monkeypatch.setenv("TORCH_LOGS", "+dynamo,inductr")
    monkeypatch.setenv("TORCH_HOME", "/innocent")

    found = look(said=said)

    assert found["what"] == "import"
    assert [each["name"] for each in found["variables"]] == ["TORCH_LOGS"]


def test_of_several_that_must_go_together_each_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; sys.exit('AAA_1' in os.environ or 'ZZZ_2' in os.environ)"
    monkeypatch.setattr(culprits, "_IMPORT", program)
    monkeypatch.setenv("AAA_1", "x")
    monkeypatch.setenv("ZZZ_2", "y")

    found = look()

    assert [each["name"] for each in found["variables"]] == ["AAA_1", "ZZZ_2"]


def test_a_file_that_ends_every_python_is_named(environment: Path) -> None:
    (environment / "aa_good.pth").write_text("import os\n")
    (environment / "zz_debugger.pth").write_text("import sys; sys.exit('no IDE')\n")

    found = look(python_of(environment))

    assert (found["what"], found["late"], found["variables"]) == ("start", False, [])
    assert found["files"] == [str(environment / "zz_debugger.pth")]


def test_a_file_at_which_every_python_waits_is_named(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprits, "_START_S", 1.0)
    (environment / "licence.pth").write_text("import time; time.sleep(60)\n")

    found = look(python_of(environment))

    assert (found["what"], found["late"]) == ("start", True)
    assert found["files"] == [str(environment / "licence.pth")]


def test_an_installation_that_is_broken_by_itself_has_no_culprit(environment: Path) -> None:
    (environment / "json.py").write_text("")

    found = look("/bin/false")

    assert (found["what"], found["variables"], found["files"]) == ("start", [], [])


def test_an_environment_that_fails_is_told_to_be_anothers(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprits, "_IMPORT", "import sys; sys.exit(1)")
    assert look(python_of(environment))["home"] is None
    settings = environment.parents[2] / "pyvenv.cfg"

    settings.write_text("home = /nonexistent\n")

    found = look(python_of(environment))["home"]
    assert (found["file"], found["home"]) == (str(settings), "/nonexistent")


def test_what_cannot_be_started_is_no_riddle(tmp_path: Path) -> None:
    assert look(tmp_path / "gone")["what"] is None

"""What a launch would send is known before: by git's rules, with repositories inside."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from yoked.fleet.model import Fleet
from yoked.launch.gitignore import has_git
from yoked.workflows.travelling import travelling_names

pytestmark = pytest.mark.skipif(not has_git(), reason="asks git")


def test_a_repository_inside_travels_and_what_is_ignored_does_not_unless_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "common").mkdir()
    for name in ("train.py", "common/__init__.py", "rows.py", "notes.txt"):
        (tmp_path / name).write_text("")
    for folder in (".", "common"):
        subprocess.run(["git", "init", "-q", folder], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("rows.py\nnotes.txt\n")
    fleet = Fleet("home", tmp_path / "yoked.toml", ())

    found = travelling_names(fleet)
    more = travelling_names(replace(fleet, include=("rows.py",)))

    assert found == {".gitignore", "train.py", "common/__init__.py"}
    assert more == {*found, "rows.py"}

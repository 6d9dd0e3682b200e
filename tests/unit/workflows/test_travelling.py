"""What a launch would send is known before: by git's rules, with repositories inside."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from yoked.fleet.model import Fleet
from yoked.launch.gitignore import has_git
from yoked.workflows.travelling import what_travels

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

    found = what_travels(fleet).names
    more = what_travels(replace(fleet, include=("rows.py",))).names

    assert found == {".gitignore", "train.py", "common/__init__.py"}
    assert more == {*(found or ()), "rows.py"}


def test_what_a_launch_would_refuse_or_remark_is_told_and_no_content_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "last.pt").symlink_to("/mnt/usb/last.pt")
    fleet = Fleet("home", tmp_path / "yoked.toml", (), include=("rows.bin",))

    told = what_travels(fleet)
    with (tmp_path / "core.81234").open("wb") as core:
        core.truncate(600_000_000)
    refused = what_travels(fleet)

    assert told.links == {"last.pt": "/mnt/usb/last.pt"}
    assert told.remarks == ("include rows.bin: no file of the folder matches",)
    assert refused.names is None
    assert "core.81234 (600 MB)" in refused.refused[0]
    assert refused.refused[1].startswith(f"name in {tmp_path}/.gitignore")


def test_a_file_that_cannot_be_read_is_refused_as_a_launch_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    opened = Path.open

    def shut(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == "train.py":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", shut)

    assert (
        what_travels(Fleet("home", tmp_path / "yoked.toml", ()))
        .refused[0]
        .endswith("train.py cannot be read: Permission denied")
    )

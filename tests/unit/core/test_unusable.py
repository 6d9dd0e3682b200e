"""What keeps a file from being used: folders and environments made up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from yoked.core.unusable import barred, other_home


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing is this user's own: only what all may do is allowed."""

    def access(at: Path, wanted: int) -> bool:
        return not at.is_relative_to(tmp_path) or at.stat().st_mode & wanted == wanted

    monkeypatch.setattr(os, "access", access)
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("closed", "mode", "wanted", "lacks"),
    [
        ("home", 0o700, os.X_OK, "x"),
        ("home/bin", 0o644, os.R_OK, "x"),
        ("home/bin/python3", 0o600, os.R_OK, "r"),
        ("home/bin/python3", 0o644, os.X_OK, "x"),
    ],
)
def test_the_place_that_turns_a_user_away_is_found_behind_links(
    strange: Path, closed: str, mode: int, wanted: int, lacks: str
) -> None:
    for name in ("home", "home/bin", "venv"):
        (strange / name).mkdir()
        (strange / name).chmod(0o755)
    (strange / "home/bin/python3").write_text("")
    (strange / "home/bin/python3").chmod(0o755)
    (strange / "home/latest").symlink_to("../home/bin")
    (strange / "venv/python").symlink_to(strange / "home/latest/python3")
    assert barred(str(strange / "venv/python"), wanted) is None

    (strange / closed).chmod(mode)
    found = barred(str(strange / "venv/python"), wanted)

    assert found is not None
    assert (found["place"], found["mode"], found["lacks"]) == (
        str(strange / closed), f"{mode:04o}", lacks,
    )  # fmt: skip


def test_a_link_in_a_circle_and_what_is_not_there_turn_nobody_away(strange: Path) -> None:
    (strange / "a").symlink_to("b")
    (strange / "b").symlink_to("a")

    assert barred(str(strange / "a")) is None
    assert barred("/nonexistent/file") is None


@pytest.mark.parametrize(
    ("home", "is_other"), [("{own}", False), ("{linked}", False), ("/nonexistent", True)]
)
def test_an_environment_is_in_order_whose_home_has_its_python(
    tmp_path: Path, home: str, is_other: bool
) -> None:
    real = Path(os.path.realpath(sys.executable))
    (tmp_path / "linked").symlink_to(real.parent)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(real)
    named = home.format(own=real.parent, linked=tmp_path / "linked")
    (tmp_path / "pyvenv.cfg").write_text(f"Home = {named}\nversion = 3\n")

    found = other_home(str(python))

    wanted = {"file": str(tmp_path / "pyvenv.cfg"), "home": named, "own": str(real.parent)}
    assert found == (wanted if is_other else None)


def test_what_is_no_environment_or_a_copy_has_no_other_home(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("a copy")
    assert other_home(str(python)) is None

    (tmp_path / "pyvenv.cfg").write_text("home = /nonexistent\n")

    assert other_home(str(python)) is None

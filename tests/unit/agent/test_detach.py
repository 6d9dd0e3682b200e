"""A supervisor is started where nothing of the login session can end it."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.agent import ask, detach


def test_without_systemd_the_command_is_as_it_is() -> None:
    assert detach.detached_argv(["python", "x"], "yoked-1", scope=False) == ["python", "x"]


def test_with_it_the_supervisor_is_in_a_unit_of_the_users_own() -> None:
    argv = detach.detached_argv(["python", "x"], "yoked-1", scope=True)

    assert argv[:3] == ["systemd-run", "--user", "--scope"]
    assert "--unit=yoked-1" in argv
    assert argv[-3:] == ["--", "python", "x"]


@pytest.mark.parametrize("missing", ["nothing", "the program", "the manager", "lingering"])
def test_a_scope_is_used_only_where_it_outlives_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(ask, "_LINGER", tmp_path)
    monkeypatch.setattr(ask, "user_name", lambda uid: "anna")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = None if missing == "the program" else "/usr/bin/systemd-run"
    monkeypatch.setattr(detach.shutil, "which", lambda name: found)
    if missing != "the manager":
        (tmp_path / "systemd" / "private").touch()
    if missing != "lingering":
        (tmp_path / "anna").touch()

    assert detach.scope_helps() == (missing == "nothing")

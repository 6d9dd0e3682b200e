"""Fixtures of several folders."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose yoked.toml makes ssh run a program of it; it leaves `owned` there."""
    folder = tmp_path / "cloned"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "config").write_text(f"Host *\n  ProxyCommand touch {folder}/owned\n")
    (folder / "yoked.toml").write_text('[fleet]\nssh_config = "config"\n[[host]]\nname = "a"\n')
    return folder

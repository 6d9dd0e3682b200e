from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from yoked.paths import cache_root, state_root

ROOTS = pytest.mark.parametrize(
    ("root", "own", "xdg", "below_home"),
    [
        (cache_root, "YOKED_CACHE", "XDG_CACHE_HOME", ".cache"),
        (state_root, "YOKED_STATE", "XDG_STATE_HOME", ".local/state"),
    ],
)
Root = Callable[[], Path]


@ROOTS
def test_our_own_variable_wins_over_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Root, own: str, xdg: str, below_home: str
) -> None:
    monkeypatch.setenv(own, str(tmp_path / "mine"))
    monkeypatch.setenv(xdg, str(tmp_path / "theirs"))

    assert root() == tmp_path / "mine"


@ROOTS
def test_the_xdg_variable_is_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Root, own: str, xdg: str, below_home: str
) -> None:
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv(xdg, str(tmp_path))

    assert root() == tmp_path / "yoked"


@ROOTS
@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_an_unset_or_relative_xdg_variable_gives_the_folder_at_home(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    root: Root,
    own: str,
    xdg: str,
    below_home: str,
    value: str,
) -> None:
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(xdg, value)

    assert root() == tmp_path / below_home / "yoked"

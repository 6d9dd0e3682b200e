from pathlib import Path

import pytest

from yoked.paths import cache_root


def test_yoked_cache_wins_over_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))

    assert cache_root() == tmp_path / "mine"


def test_xdg_cache_home_is_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("YOKED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_root() == tmp_path / "yoked"


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_an_unset_or_relative_xdg_cache_home_gives_the_one_at_home(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("YOKED_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)

    assert cache_root() == tmp_path / ".cache" / "yoked"

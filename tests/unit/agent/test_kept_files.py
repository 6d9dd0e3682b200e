"""Files that are left at one look are there, or gone, at the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import watch
from yoked.agent.watch import answer_watch
from yoked.records.answers import understood


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, variable in (("state", "YOKED_STATE"), ("cache", "YOKED_CACHE"), ("tmp", "TMPDIR")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    yield tmp_path
    watch._clear()


def look(files: str | None) -> dict[str, Any]:
    told = answer_watch(FakeCall(files=files))
    assert understood("watch", told, odd := []) == told
    assert odd == []
    return told


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_left_in_each_folder_is_there_at_the_next_look_and_then_removed(
    folders: Path,
) -> None:
    first = look("leave")
    left = files_in(folders)
    last = look("look")

    assert first["kept"] == {}
    assert {path.parent.name for path in left} == {"state", "cache", "tmp"}
    assert last["kept"] == {"state": True, "cache": True, "tmp": True}
    assert files_in(folders) == []
    assert first["monotonic_s"] < last["monotonic_s"]


def test_what_somebody_removed_is_told(folders: Path) -> None:
    look("leave")
    for path in files_in(folders / "cache"):
        path.unlink()

    assert look("look")["kept"] == {"state": True, "cache": False, "tmp": True}


def test_clocks_alone_leave_nothing(folders: Path) -> None:
    assert look(None)["kept"] == {}
    assert files_in(folders) == []


def test_an_agent_that_ends_early_leaves_nothing(folders: Path) -> None:
    look("leave")

    watch._clear()

    assert files_in(folders) == []


def test_nothing_is_left_in_a_home_itself(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folders))
    for variable in ("YOKED_STATE", "YOKED_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    look("leave")

    assert {path.parent.name for path in files_in(folders)} == {"tmp"}

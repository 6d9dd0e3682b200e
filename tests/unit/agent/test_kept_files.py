"""Files that are left at one look are there, or gone, at the next."""

from __future__ import annotations

import resource
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


def became(told: dict[str, Any]) -> dict[str, str | None]:
    """What became of the file in each folder; None: it was kept."""
    assert all(each["kept"] == (each["now"] is None) for each in told["folders"].values())
    return {name: each["now"] for name, each in told["folders"].items()}


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_left_in_each_folder_is_there_at_the_next_look_and_then_removed(
    folders: Path,
) -> None:
    first = look("leave")
    left = files_in(folders)
    last = look("look")

    assert first["folders"] == {}
    assert {path.parent.name for path in left} == {"state", "cache", "tmp"}
    assert became(last) == {"state": None, "cache": None, "tmp": None}
    assert files_in(folders) == []
    assert first["monotonic_s"] < last["monotonic_s"]


def test_what_somebody_removed_is_told(folders: Path) -> None:
    look("leave")
    for path in files_in(folders / "cache"):
        path.unlink()

    assert became(look("look")) == {"state": None, "cache": "gone", "tmp": None}


@pytest.mark.parametrize("suffix", [".sync-conflict-20261127.json", ".json.old"])
def test_what_somebody_gave_another_name_is_told_by_it_and_removed(
    folders: Path, suffix: str
) -> None:
    look("leave")
    for path in files_in(folders / "state"):
        path.rename(path.with_name(path.stem + suffix))

    told = became(look("look"))["state"]

    assert told is not None
    assert told.endswith(suffix)
    assert files_in(folders) == []


def test_a_file_that_is_another_one_now_was_not_kept(folders: Path) -> None:
    look("leave")
    for path in files_in(folders / "state"):
        path.write_text("")

    assert became(look("look"))["state"] == "another file"


def test_what_the_agent_of_another_host_left_in_the_same_folder_is_seen_and_stays(
    folders: Path,
) -> None:
    theirs = folders / "state" / "yoked-look-0123456789ab-state.json"
    theirs.write_text("")
    look("leave")

    told = look("look")["folders"]

    assert told["state"]["kept"]
    assert told["state"]["beside"] == ["0123456789ab"]
    assert told["cache"]["beside"] == []
    assert files_in(folders) == [theirs]


def test_limits_are_those_of_this_moment() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    before = look(None)["limits"]["cpu"]
    resource.setrlimit(resource.RLIMIT_CPU, (864_000, hard))
    after = look(None)["limits"]["cpu"]
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))

    assert before != [864_000, before[1]]
    assert after == [864_000, before[1]]


def test_folders_that_are_still_to_be_made_beside_each_other_keep_their_files(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state", "cache"):
        monkeypatch.setenv(f"YOKED_{name.upper()}", str(folders / "new" / name))

    look("leave")
    told = look("look")

    assert became(told) == {"state": None, "cache": None, "tmp": None}
    assert told["folders"]["state"]["beside"] == []


def test_clocks_alone_leave_nothing(folders: Path) -> None:
    assert look(None)["folders"] == {}
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

"""What an agent lists of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import fetch as agent_fetch
from yoked.agent.fetch import answer_file_list
from yoked.errors import HostError


def test_links_and_what_is_no_file_are_not_listed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs/a.0.log").write_text("said")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("mine")
    (run / "run.json").symlink_to(tmp_path / "secret/key")
    (run / "checkpoints").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "events.jsonl")

    listed = answer_file_list(FakeCall(folder=str(run)))

    assert [(name, size) for name, size, _ in listed] == [("logs/a.0.log", 4)]


def test_a_folder_that_is_a_link_is_listed(tmp_path: Path) -> None:
    (tmp_path / "large/night").mkdir(parents=True)
    (tmp_path / "large/night/run.json").write_text("{}")
    (tmp_path / "runs").symlink_to(tmp_path / "large")

    listed = answer_file_list(FakeCall(folder=str(tmp_path / "runs/night")))

    assert [name for name, *_ in listed] == ["run.json"]


def test_only_what_a_pattern_names_is_listed(tmp_path: Path) -> None:
    for name in ("out/a.pt", "out/b.txt", "c.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    listed = answer_file_list(FakeCall(folder=str(tmp_path), patterns=["/c.pt", "out/*.txt"]))

    assert [name for name, *_ in listed] == ["c.pt", "out/b.txt"]


def test_more_files_than_a_message_can_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_fetch, "_MOST_FILES", 1)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")

    with pytest.raises(HostError) as caught:
        answer_file_list(FakeCall(folder=str(tmp_path), patterns=["*"]))
    assert "more than 1 files that match" in caught.value.what

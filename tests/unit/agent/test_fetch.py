"""What an agent lists of a folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.agent.fake_call import FakeCall

from yoked.agent.fetch import answer_file_list


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

"""What has passed is noted for a file and its hosts, and is no more than a note."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from yoked.fleet.model import Fleet, Host
from yoked.paths import state_root
from yoked.workflows.passed import forget_passed, note_passed, passed_of


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    return Fleet("home", (Host("alpha"), Host("beta")), tmp_path / "yoked.toml")


def test_what_passed_is_known_until_it_is_forgotten(fleet: Fleet) -> None:
    note_passed(fleet, "install", "2 hosts can train")
    note_passed(fleet, "doctor", "nothing is in the way")
    forget_passed(fleet, "doctor")

    assert {name: each.said for name, each in passed_of(fleet).items()} == {
        "install": "2 hosts can train"
    }


def test_a_folder_whose_name_is_no_text_has_notes_too(fleet: Fleet, tmp_path: Path) -> None:
    odd = replace(fleet, path=tmp_path / os.fsdecode(b"caf\xe9") / "yoked.toml")

    note_passed(odd, "install", "2 hosts can train")

    assert set(passed_of(odd)) == {"install"}


def test_other_hosts_have_to_pass_by_themselves(fleet: Fleet) -> None:
    note_passed(fleet, "install", "2 hosts can train")

    assert passed_of(replace(fleet, hosts=(*fleet.hosts, Host("gamma")))) == {}


@pytest.mark.parametrize("content", ["", "[]", '{"steps": 3}', '{"steps": {"install": 3}}'])
def test_a_damaged_note_is_none(fleet: Fleet, content: str) -> None:
    note_passed(fleet, "install", "2 hosts can train")
    (note,) = (state_root() / "passed").iterdir()
    note.write_text(content)

    assert passed_of(fleet) == {}


def test_a_folder_that_takes_no_note_is_no_failure(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "file"))

    note_passed(fleet, "install", "2 hosts can train")

    assert passed_of(fleet) == {}

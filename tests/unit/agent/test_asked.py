"""What a program asks of this host by name is told: what is there, and by what it is known."""

from __future__ import annotations

import os
import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from yoked.agent import asked
from yoked.agent.asked import probe_asked
from yoked.records.asked_rules import ASKED


def told(**asks: list[str]) -> dict[str, Any]:
    odd: list[str] = []
    found: dict[str, Any] = ASKED(probe_asked(asks), "asked", odd)
    assert odd == []
    return found


def test_nothing_is_told_where_nothing_is_asked() -> None:
    assert probe_asked() == {}


def test_variables_are_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS", "7")
    monkeypatch.setenv("ROWS_TOKEN", "abc")

    assert told(variables=["ROWS", "ROWS_TOKEN", "NO_ROWS"])["variables"] == {
        "ROWS": "7", "ROWS_TOKEN": "***", "NO_ROWS": None,
    }  # fmt: skip


def test_files_and_folders_are_known_by_size_content_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("hunter2")
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("6c1d4f0a\n")

    found = told(files=["~/key", "~/refs/main", "~/refs", "~/none", "/dev/null"])["files"]

    # A short word may be a password: a revision alone is shown.
    assert found["~/key"] == {"kind": "file", "size": 7, "digest": sha256(b"hunter2").hexdigest()}
    assert found["~/refs/main"]["begins"] == "6c1d4f0a"
    assert found["~/refs"] == {"kind": "folder", "count": 1, "entries": {"main": "9"}}
    assert found["~/none"] == {"kind": "missing"}
    assert found["/dev/null"] == {"kind": "other"}


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "rows").open("wb") as stream:
        stream.truncate(1 << 40)

    found = told(files=[str(tmp_path / "rows")])["files"]

    assert list(found.values()) == [{"kind": "file", "size": 1 << 40}]


def test_it_is_told_why_a_file_cannot_be_written(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("new", "none/new", ".")]

    found = [each["problem"] for each in told(writes=paths)["writes"].values()]

    assert found == [None, "ENOENT", "EISDIR"]


@pytest.mark.skipif(os.getuid() != 0, reason="a file of another's takes root to make")
def test_a_file_of_anothers_in_a_folder_for_all_is_refused_as_the_kernel_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows"
    path.write_text("x")
    os.chown(path, 12_345, 12_345)
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, 23_456, 23_456)
    try:
        with path.open("w"):
            refused = False
    except PermissionError:
        refused = True

    problem = told(writes=[str(path)])["writes"][str(path)]["problem"]

    assert (problem == "EACCES") == refused


def test_programs_libraries_and_ports_are_looked_up(tmp_path: Path) -> None:
    program = tmp_path / "rowtool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        found = told(
            programs=["sh", "no-such-program", "rowtool"],
            pythons=[str(tmp_path / "python")],
            libraries=["libc.so.6", "libnosuch.so.1"],
            ports=[port],
        )

    assert found["programs"]["no-such-program"] is None
    assert found["programs"]["rowtool"] == str(program)
    assert found["programs"]["sh"]
    assert found["libraries"]["libnosuch.so.1"] is not True
    assert found["ports"] == {port: "EADDRINUSE"}


def test_a_repository_in_a_hubs_cache_is_known_by_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for revision, content in (("6c1d", "new"), ("1b77", "older")):
        place = tmp_path / "models--ada--net" / "snapshots" / revision
        place.mkdir(parents=True)
        (place / "a.bin").write_text(content)
    (tmp_path / "models--ada--net" / "refs").mkdir()
    (tmp_path / "models--ada--net" / "refs" / "main").write_text("6c1d")

    found = told(hub=["ada/net", "ada/none"])["hub"]

    assert (found["ada/net"]["revision"], found["ada/net"]["files"]) == ("6c1d", {"a.bin": 3})
    assert found["ada/none"]["revision"] is None


def test_the_caches_of_torch_hub_and_nltk_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    (tmp_path / "hub" / "ada_net_main").mkdir(parents=True)
    (tmp_path / "tokenizers" / "punkt").mkdir(parents=True)

    found = told(torch_hub=["ada/net"], nltk=["punkt", "no-such-corpus"])

    assert found["torch_hub"]["ada/net"]["revision"] == "ada_net_main"
    assert found["nltk"]["punkt"]["revision"] == "punkt"
    assert found["nltk"]["no-such-corpus"]["revision"] is None


def test_a_file_is_looked_for_above_the_folders_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "state_root", lambda: tmp_path / "a" / "b")
    (tmp_path / ".rows").write_text("ROWS=1\n")

    assert told(above=[".rows", ".none-such"])["above"] == {
        ".rows": {"kind": "file", "size": 7, "path": str(tmp_path / ".rows"),
                  "digest": sha256(b"ROWS=1\n").hexdigest()},
        ".none-such": {"kind": "missing"},
    }  # fmt: skip

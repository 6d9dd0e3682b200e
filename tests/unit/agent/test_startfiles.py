"""Where a variable is set: files made up in a home, and what is read of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.agent import startfiles
from yoked.agent.startfiles import places_of, probe_set_by


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_variable_is_found_in_every_way_to_set_it(own: Path) -> None:
    (own / ".bashrc").write_text("# TORCH_LOGS=no\nexport FOO=1 TORCH_LOGS=+dynamo,inductr\n")
    (own / ".profile").write_text('[ -n "$X" ] && TORCH_LOGS="dynamo" && export TORCH_LOGS\n')
    (own / ".ssh").mkdir()
    (own / ".ssh" / "environment").write_text("PYTHONPLATLIBDIR=lib64\n")
    (own / ".config" / "fish").mkdir(parents=True)
    (own / ".config" / "fish" / "config.fish").write_text("set -gx TORCH_LOGS dynamo\n")
    (own / ".config" / "fish" / "fish_variables").write_text(
        "# VERSION: 3.0\nSETUVAR fish_color:red\nSETUVAR --export TORCH_LOGS:dynamo\n"
    )
    (own / ".cshrc").write_text("setenv TORCH_LOGS dynamo\n")

    found = places_of(["TORCH_LOGS", "PYTHONPLATLIBDIR", "LOGS"])

    at = {
        name: [(Path(each["file"]).name, each["line"]) for each in own]
        for name, own in found.items()
    }
    assert at["PYTHONPLATLIBDIR"] == [("environment", 1)]
    assert at["TORCH_LOGS"] == [
        (".profile", 1),
        (".bashrc", 2),
        ("config.fish", 1),
        ("fish_variables", 3),
    ]
    assert at["LOGS"] == []


def test_files_that_a_start_file_reads_are_read_too(own: Path) -> None:
    (own / "mine").mkdir()
    (own / ".bashrc").write_text('. "$HOME/mine/env"\nif true; then source ~/gone; fi\n')
    (own / "mine" / "env").write_text("export GLOO_X=1\n. ~/.bashrc\n")

    assert places_of(["GLOO_X"]) == {"GLOO_X": [{"file": str(own / "mine" / "env"), "line": 1}]}


def test_settings_of_the_ssh_server_count(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "sshd_config").write_text("Port 22\nSetEnv PYTHONHASHSEED=random0\n")
    monkeypatch.setattr(startfiles, "sshd_files", lambda: [str(own / "sshd_config")])

    found = places_of(["PYTHONHASHSEED"])

    assert found == {"PYTHONHASHSEED": [{"file": str(own / "sshd_config"), "line": 2}]}


def test_what_no_file_sets_has_no_place(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_OF_A_CONTAINER", "1")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    found = probe_set_by()

    assert found["TORCH_OF_A_CONTAINER"] == []
    assert not {"HOME", "LC_ALL"} & found.keys()


def test_a_locale_without_utf8_has_its_place(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / ".bashrc").write_text("export LC_ALL=de_DE.ISO-8859-1\n")
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")

    assert probe_set_by()["LC_ALL"] == [{"file": str(own / ".bashrc"), "line": 1}]

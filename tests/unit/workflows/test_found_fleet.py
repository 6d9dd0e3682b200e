"""What a fleet that is looked at anew takes over of what was known of its hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from yoked.fleet.file import read_fleet
from yoked.fleet.model import Host
from yoked.fleet.trust import remember
from yoked.workflows.found_fleet import hosts_of_lab, wanted_fleet

OF_LAB = """
[fleet]
ssh_config = "ssh_config"
[[host]]
name = "alpha"
interface = "eth0"
python = "/venv/bin/python"
[[host]]
name = "beta"
python = "/venv/bin/python"
nice = 5
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a lab that wrote its ssh configuration and its fleet."""
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "ssh_config").write_text("Host alpha beta\n")
    (folder / "yoked.toml").write_text(OF_LAB)
    remember(read_fleet(folder / "yoked.toml"))
    return folder


def test_a_file_that_is_replaced_leaves_all_but_how_hosts_are_reached(lab: Path) -> None:
    wanted = wanted_fleet((), lab / "yoked.toml", None, None)

    assert wanted.hosts == (
        Host("alpha", python="/venv/bin/python"),
        Host("beta", python="/venv/bin/python", nice=5),
    )


def test_hosts_of_a_lab_keep_their_python_in_another_file(lab: Path, tmp_path: Path) -> None:
    known = hosts_of_lab(lab / "ssh_config")

    wanted = wanted_fleet(("beta", "other"), tmp_path / "f.toml", lab / "ssh_config", None, known)

    assert wanted.hosts == (Host("beta", python="/venv/bin/python", nice=5), Host("other"))


def test_what_the_file_itself_says_of_a_host_comes_before_the_labs(
    lab: Path, tmp_path: Path
) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[[host]]\nname = "beta"\nranks = 2\n')

    wanted = wanted_fleet((), file, lab / "ssh_config", None, hosts_of_lab(lab / "ssh_config"))

    assert wanted.hosts == (Host("beta", ranks=2),)


def test_a_file_beside_another_ssh_configuration_or_that_nobody_trusts_is_none_of_a_lab(
    lab: Path, tmp_path: Path
) -> None:
    (lab / "other_config").write_text("Host alpha\n")
    shutil.copytree(lab, tmp_path / "sent")

    assert hosts_of_lab(None) == hosts_of_lab(lab / "nowhere") == ()
    assert hosts_of_lab(lab / "other_config") == ()
    assert hosts_of_lab(tmp_path / "sent" / "ssh_config") == ()

"""What a yoked.toml has run is agreed to once: by its path and its value."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.cli.main import main
from yoked.errors import FleetError
from yoked.fleet.file import load_fleet, read_fleet
from yoked.fleet.trust import remember, revoke, values_of
from yoked.paths import state_root


def write(
    path: Path, *, python: str | None = None, interface: str = "eth0", name: str = "a"
) -> Path:
    line = "" if python is None else f'python = "{python}"\n'
    path.write_text(f'[[host]]\nname = "{name}"\ninterface = "{interface}"\n{line}')
    return path


def is_trusted(path: Path) -> bool:
    try:
        load_fleet(path)
    except FleetError as problem:
        return "nobody has agreed" not in problem.what
    return True


@pytest.mark.parametrize("config", ["/dev/zero", "pipe", "."])
def test_a_config_that_is_no_file_is_not_read(cloned: Path, config: str) -> None:
    os.mkfifo(cloned / "pipe")
    (cloned / "yoked.toml").write_text(f'[fleet]\nssh_config = "{config}"\n[[host]]\nname = "a"\n')

    (value,) = values_of(read_fleet(cloned / "yoked.toml")).values()

    assert value.endswith("(not there)")


def test_a_config_without_an_end_is_refused(cloned: Path) -> None:
    with (cloned / "config").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(FleetError, match="which has more than"):
        values_of(read_fleet(cloned / "yoked.toml"))


def test_what_was_agreed_to_can_be_taken_back(cloned: Path) -> None:
    assert main(["trust"]) == 0
    assert main(["trust", "yoked.toml", "--revoke"]) == 0

    assert not is_trusted(Path("yoked.toml"))
    assert not revoke(Path("yoked.toml"))


def test_another_content_of_the_ssh_config_is_asked_about_anew(cloned: Path) -> None:
    remember(read_fleet(Path("yoked.toml")))
    assert is_trusted(Path("yoked.toml"))

    (cloned / "config").write_text("Host *\n  ProxyCommand rm -r ~\n")

    assert not is_trusted(Path("yoked.toml"))


@pytest.mark.parametrize(
    ("receiver", "shown"),
    [
        ('command = ["sh", "-c", "evil"]', "command of notify = sh -c evil"),
        ('url = "https://evil.example/secret"', "url of notify = https://evil.example/… sha256:"),
    ],
)
def test_who_is_told_is_agreed_to_and_a_url_is_shown_by_its_place(
    tmp_path: Path, receiver: str, shown: str
) -> None:
    file = write(tmp_path / "yoked.toml")
    file.write_text(f"[notify]\n{receiver}\n{file.read_text()}")

    with pytest.raises(FleetError) as raised:
        load_fleet(file)

    assert shown in raised.value.what
    assert "secret" not in str(raised.value)
    remember(read_fleet(file))
    assert is_trusted(file)
    file.write_text(file.read_text().replace("evil", "worse"))
    assert not is_trusted(file)


def test_a_console_of_a_host_is_agreed_to(tmp_path: Path) -> None:
    file = write(tmp_path / "yoked.toml")
    file.write_text(f'{file.read_text()}console = ["sh", "-c", "evil"]\n')

    with pytest.raises(FleetError) as raised:
        load_fleet(file)

    assert "console of a = sh -c evil" in raised.value.what


def test_the_same_file_at_another_path_is_asked_about_anew(tmp_path: Path) -> None:
    file = write(tmp_path / "one.toml", python="./evil")
    remember(read_fleet(file))

    assert is_trusted(file)
    assert not is_trusted(write(tmp_path / "two.toml", python="./evil"))


def test_each_value_is_asked_about_once_and_other_keys_never(tmp_path: Path) -> None:
    file = write(tmp_path / "yoked.toml", python="/usr/bin/python3")
    remember(read_fleet(file))

    assert is_trusted(write(file, python="/usr/bin/python3", interface="wlan0"))
    assert not is_trusted(write(file, python="./evil"))
    remember(read_fleet(file))
    assert is_trusted(write(file, python="/usr/bin/python3"))
    assert is_trusted(write(file, python="./evil"))
    assert not is_trusted(write(file, python="./evil", name="b"))


def test_a_file_without_such_keys_asks_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "yoked.toml")

    assert is_trusted(file)
    assert remember(read_fleet(file)) == {}
    assert not (state_root() / "trusted").exists()


def test_a_persons_own_ssh_config_is_what_ssh_reads_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "yoked.toml").write_text(
        '[fleet]\nssh_config = "~/.ssh/config"\n[[host]]\nname = "a"\n'
    )

    assert is_trusted(tmp_path / "yoked.toml")


def test_only_the_owner_can_read_what_was_agreed_to(tmp_path: Path) -> None:
    remember(read_fleet(write(tmp_path / "yoked.toml", python="/usr/bin/python3")))

    (entry,) = (state_root() / "trusted").iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    assert entry.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_another_user_put_there_is_no_agreement(tmp_path: Path) -> None:
    file = write(tmp_path / "yoked.toml", python="./evil")
    remember(read_fleet(file))
    (entry,) = (state_root() / "trusted").iterdir()

    os.chown(entry, 12_345, -1)

    assert not is_trusted(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_called_that(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = write(tmp_path / "yoked.toml", python="./evil")
    os.chown(file, 12_345, -1)

    with pytest.raises(FleetError) as caught:
        load_fleet(file)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", ["{", "[]", '{"path": 7}', '{"values": {"a": 7}}', "\0"])
def test_a_damaged_entry_is_no_agreement(tmp_path: Path, content: str) -> None:
    file = write(tmp_path / "yoked.toml", python="./evil")
    remember(read_fleet(file))
    (entry,) = (state_root() / "trusted").iterdir()
    entry.write_text(content)

    assert not is_trusted(file)
    remember(read_fleet(file))
    assert is_trusted(file)


def test_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    gone = write(tmp_path / "gone.toml", python="./evil")
    remember(read_fleet(gone))
    gone.unlink()

    remember(read_fleet(write(tmp_path / "other.toml", python="./evil")))

    assert len(list((state_root() / "trusted").iterdir())) == 1


def test_values_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    file = write(tmp_path / "yoked.toml", python="a\\u202eb")

    with pytest.raises(FleetError) as caught:
        load_fleet(file)

    assert r"python of a = a\u202eb" in caught.value.what
    assert all(each.isprintable() for each in caught.value.what.replace("\n", ""))


def test_what_init_wrote_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "yoked.toml"
    file.write_text(f'[[host]]\nname = "."\npython = "{sys.executable}"\n')
    with pytest.raises(FleetError) as caught:
        load_fleet(file)
    assert str(caught.value) == snapshot
    remember(read_fleet(file))

    assert main(["init", "--force"]) == 0
    revoked = revoke(file)
    assert main(["init", ".", "--fleet", "other.toml"]) == 0

    assert revoked
    assert is_trusted(tmp_path / "other.toml")


def test_ssh_reads_what_was_agreed_to_whatever_lies_there_now(cloned: Path) -> None:
    agreed = (cloned / "config").read_text()
    remember(read_fleet(Path("yoked.toml")))
    fleet = load_fleet(Path("yoked.toml"))

    # Who may write into that folder exchanges it between our look and ssh's.
    (cloned / "config").write_text("Host *\n  ProxyCommand rm -r ~\n")

    assert fleet.ssh_file is not None
    assert fleet.ssh_file.read_text() == agreed
    assert fleet.ssh_file.stat().st_mode & 0o777 == 0o600
    assert fleet.ssh_config == Path("config")


def test_a_link_to_a_persons_own_file_leads_to_that_file_alone(
    cloned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cloned.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").touch()
    monkeypatch.setenv("HOME", str(home))
    (cloned / "config").unlink()
    (cloned / "config").symlink_to(home / ".ssh" / "config")

    fleet = load_fleet(Path("yoked.toml"))
    (cloned / "config").unlink()
    (cloned / "config").write_text("Host *\n  ProxyCommand rm -r ~\n")

    assert fleet.ssh_file == home / ".ssh" / "config"


def test_a_file_that_is_not_there_yet_is_no_file_to_agree_to(cloned: Path) -> None:
    (cloned / "config").unlink()
    remember(read_fleet(Path("yoked.toml")))

    with raises_fault("ssh-config-missing", ssh_config="config"):
        load_fleet(Path("yoked.toml"))

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.lab.made import made

from yoked.errors import LabError
from yoked.lab import ssh

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh here")
FLEET = made("""
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
[[network]]
name = "vpn"
subnet6 = "fd00::/64"
[[host]]
name = "alpha"
[[host.interface]]
name = "tailscale0"
network = "vpn"
[[host.interface]]
name = "docker0"
kind = "bridge"
address = "172.17.0.1/16"
[[host]]
name = "beta"
[[host.interface]]
name = "eth0"
network = "vpn"
""")
ALPHA, BETA = FLEET.hosts


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ssh.Keys:
    made = ssh.Keys(tmp_path_factory.mktemp("keys") / "ssh")
    made.make(["alpha", "beta"])
    return made


def setting(config: Path, host_name: str, key: str) -> str:
    """What ssh itself makes of a configuration."""
    said = subprocess.run(
        ["ssh", "-G", "-F", str(config), host_name], capture_output=True, text=True, check=True
    ).stdout
    return next(line.partition(" ")[2] for line in said.splitlines() if line.startswith(key + " "))


def test_a_host_is_known_by_name_and_addresses_that_others_reach() -> None:
    assert ssh.names_of(ALPHA) == ["alpha", "192.168.77.1", "fd00::1"]
    assert ssh.names_of(BETA) == ["beta", "fd00::2"]


@needs_ssh
def test_keys_are_for_their_owner_alone(keys: ssh.Keys) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in keys.folder.iterdir()}

    assert {name: mode for name, mode in modes.items() if not name.endswith(".pub")} == {
        "id_ed25519": 0o600,
        "host_alpha": 0o600,
        "host_beta": 0o600,
    }
    assert keys.folder.stat().st_mode & 0o777 == 0o700


@needs_ssh
def test_each_host_has_a_key_of_its_own_and_every_host_knows_all(keys: ssh.Keys) -> None:
    known = keys.known_hosts(FLEET).splitlines()

    assert [line.split()[0] for line in known] == ["alpha,192.168.77.1,fd00::1", "beta,fd00::2"]
    assert len({line.split()[2] for line in known}) == 2
    assert keys.server_files(ALPHA)["host_key"] != keys.server_files(BETA)["host_key"]


@needs_ssh
def test_whoever_has_the_login_key_may_enter(keys: ssh.Keys) -> None:
    client, server = keys.client_files(FLEET, "ada"), keys.server_files(ALPHA)

    assert server["authorized_keys"] == client["id_ed25519.pub"]
    assert "User ada" in client["config"]


@needs_ssh
def test_the_client_configuration_reaches_a_host_through_the_lab(
    keys: ssh.Keys, tmp_path: Path
) -> None:
    config = tmp_path / "ssh_config"
    keys.write_client_config(config, tmp_path, FLEET, "ada")

    assert setting(config, "alpha", "hostname") == "192.168.77.1"
    assert setting(config, "beta", "hostname") == "fd00::2"
    assert setting(config, "alpha", "user") == "ada"
    assert setting(config, "alpha", "identityfile") == str(keys.login)
    assert setting(config, "alpha", "stricthostkeychecking") == "true"
    assert setting(config, "alpha", "userknownhostsfile") == str(keys.folder / "known_hosts")
    command = shlex.split(setting(config, "alpha", "proxycommand"))
    assert command[-3:] == [str(tmp_path), "192.168.77.1", "%p"]


@needs_ssh
def test_a_folder_with_blanks_and_percent_signs_reaches_ssh_whole(tmp_path: Path) -> None:
    lab = tmp_path / "my labs 100%h"
    lab.mkdir()
    keys = ssh.Keys(lab / "ssh")
    keys.make(["alpha", "beta"])

    keys.write_client_config(lab / "ssh_config", lab, FLEET, "ada")

    config = lab / "ssh_config"
    command = setting(config, "alpha", "proxycommand").replace("%%", "%")
    assert str(lab) in shlex.split(command)
    for key, path in (
        ("identityfile", keys.login),
        ("userknownhostsfile", lab / "ssh/known_hosts"),
    ):
        # Some are shown as ssh uses them, some as they are written.
        assert setting(config, "alpha", key).replace("%%", "%") == str(path)


def test_keys_that_cannot_be_made_are_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "ssh-keygen").write_text("#!/bin/sh\necho the disk is full >&2\nexit 1\n")
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(LabError) as caught:
        ssh.Keys(tmp_path / "ssh").make(["alpha", "beta"])
    assert str(caught.value) == snapshot


@pytest.mark.skipif(ssh.server_command() is None, reason="no ssh server here")
@needs_ssh
def test_the_server_accepts_its_configuration(keys: ssh.Keys, tmp_path: Path) -> None:
    files = keys.server_files(ALPHA)
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace(ssh.SERVER_FOLDER, str(tmp_path)))
        (tmp_path / name).chmod(0o600)
    command = ssh.server_command()
    assert command is not None

    done = subprocess.run(
        [command[0], "-T", "-f", str(tmp_path / "sshd_config")],
        capture_output=True,
        text=True,
        check=False,
    )

    if "Missing privilege separation directory" not in done.stderr:
        assert done.returncode == 0, done.stderr
        shown = done.stdout.lower().splitlines()
        assert {"passwordauthentication no", "usepam no", "port 22"} <= set(shown)

"""A host says what it runs inside of: a container, or Linux in Windows."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.agent import virtual
from yoked.agent.health import answer_health

from .fake_call import FakeCall

WSL2 = "5.15.167.4-microsoft-standard-WSL2"
# netsh of a German Windows.
PORTPROXY = """
Abhören auf ipv4:             Verbinden mit ipv4:

Adresse         Port        Adresse         Port
--------------- ----------  --------------- ----------
0.0.0.0         2222        172.29.48.1     22
192.168.1.40    8000        172.29.48.1     8000
"""


def program(path: Path, says: str) -> Path:
    """A program that says this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'E'\n{says}\nE\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("run/systemd/container", "lxc\n", "lxc"),
        ("run/host/container-manager", "systemd-nspawn", "systemd-nspawn"),
        ("var/run/secrets/kubernetes.io/token", "", "kubernetes"),
        ("run/systemd/container", "wsl", None),
        ("run/systemd/container", "a b\x1b[0m", None),
        ("etc/hostname", "attic", None),
    ],
)
def test_a_container_is_known_by_its_managers_mark(
    tmp_path: Path, file: str, content: str, kind: str | None
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)

    assert virtual.container(tmp_path) == kind


def test_an_interface_whose_other_end_is_elsewhere_is_bridged(tmp_path: Path) -> None:
    for name, own, other in (("eth0", 7, 12), ("enp4s0", 2, 2), ("lo", 1, 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ifindex").write_text(f"{own}\n")
        (tmp_path / name / "iflink").write_text(f"{other}\n")

    assert virtual.bridged(tmp_path) == ["eth0"]


def test_linux_elsewhere_than_in_windows_says_nothing_of_it() -> None:
    told = virtual.windows("6.8.0-generic")

    assert told == {"networking": None, "portproxy": None, "inbound": None}


def test_windows_tells_its_networking_ports_and_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "_SYSTEM32", tmp_path)
    monkeypatch.setattr(virtual, "_POWERSHELL", program(tmp_path / "powershell.exe", "Block"))
    program(tmp_path / "netsh.exe", PORTPROXY)
    program(tmp_path / "wslinfo", "mirrored")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    told = virtual.windows(WSL2)

    assert told == {
        "networking": "mirrored",
        "portproxy": [2222, 8000],
        "inbound": "Block",
    }


@pytest.mark.parametrize(
    ("gateway", "interface", "mode"),
    [
        (("172.29.48.1", "eth0"), "eth0", "nat"),
        (("192.168.1.1", "eth0"), "loopback0", "mirrored"),
        (("192.168.1.1", "eth0"), "eth0", None),
        (None, "eth0", None),
    ],
)
def test_a_windows_that_cannot_be_asked_is_known_by_its_interfaces(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gateway: tuple[str, str] | None,
    interface: str,
    mode: str | None,
) -> None:
    (tmp_path / interface).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(virtual, "default_gateway", lambda: gateway)

    assert virtual.networking(tmp_path) == mode


def test_this_host_tells_all_of_it() -> None:
    told = answer_health(FakeCall(parts=["virtual"]))["virtual"]

    assert set(told) == {"container", "bridged", "networking", "portproxy", "inbound"}

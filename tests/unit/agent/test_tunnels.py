"""Whose a tun device is, and what its peers may send, is told without a key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.agent.test_writers import process

from yoked.agent import tunnels
from yoked.agent.tunnels import probe_tunnels


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/stat").write_text("")
    return tmp_path / "proc"


def test_programs_are_told_with_the_tun_device_that_is_their_own(
    proc: Path, tmp_path: Path
) -> None:
    net = tmp_path / "net"
    (net / "tun0").mkdir(parents=True)
    for pid, name, state, device in (
        (41, "openvpn", "T", "tun0"), (42, "vim", "T", ""), (43, "tincd", "S", "tun1"),
        (44, "tincd", "T", None), (45, "less", "T", None),
    ):  # fmt: skip
        process(proc, pid, name, name, "--config", "home.conf")
        (proc / str(pid) / "stat").write_text(f"{pid} (a) b) {state} 1 1 1\n")
        if device is None:
            # As it is where the program is another user's.
            continue
        (proc / str(pid) / "fdinfo").mkdir()
        told = f"pos:\t0\nflags:\t0100002\n{f'iff:{chr(9)}{device}' if device else ''}\n"
        (proc / str(pid) / "fdinfo/3").write_text(told)

    without = (probe_tunnels(proc, net, tmp_path) or {})["owners"]
    (net / "tun0/tun_flags").write_text("0x1001")
    found = (probe_tunnels(proc, net, tmp_path) or {})["owners"]

    assert without == []
    assert [(each["pid"], each["interface"], each["stopped"]) for each in found] == [
        (41, "tun0", True), (43, "tun1", False), (44, None, True),
    ]  # fmt: skip
    assert found[0]["command"] == "openvpn --config home.conf"


@pytest.mark.parametrize("is_named", [True, False])
def test_of_its_configuration_only_what_peers_may_send_is_told(
    proc: Path, tmp_path: Path, is_named: bool
) -> None:
    folder = tmp_path / ("home" if is_named else "etc/wireguard")
    folder.mkdir(parents=True)
    (folder / "wg0.conf").write_text(
        "[Interface]\nPrivateKey = hush\n[Peer]\nallowedips=10.8.0.10/32, fd00::/64\n"
    )
    (tmp_path / "net/wg0").mkdir(parents=True)
    (tmp_path / "net/wg0/tun_flags").write_text("0x1001")
    process(proc, 7, "wireguard-go", "wireguard-go", *(["wg0.conf"] if is_named else ["wg0"]))
    (proc / "7/cwd").symlink_to(folder)
    (proc / "7/fdinfo").mkdir()
    (proc / "7/fdinfo/4").write_text("iff:\twg0\n")

    told = probe_tunnels(proc, tmp_path / "net", tmp_path) or {}

    assert told["owners"][0]["config"] == os.path.realpath(folder / "wg0.conf")
    assert [each.partition(":")[2] for each in told["allows"]] == [
        "4 AllowedIPs = 10.8.0.10/32, fd00::/64"
    ]
    assert "hush" not in str(told)


def test_the_kernels_own_wireguard_is_asked_by_wg(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net/wg1").mkdir(parents=True)
    (tmp_path / "net/wg1/uevent").write_text("DEVTYPE=wireguard\nINTERFACE=wg1\n")
    wg = tmp_path / "wg"
    wg.write_text("#!/bin/sh\nprintf 'wg1\\tKEY=\\t10.8.0.2/32 10.9.0.0/16\\n'\n")
    wg.chmod(0o755)
    monkeypatch.setattr(tunnels, "tool", lambda name: str(wg))

    told = probe_tunnels(proc, tmp_path / "net", tmp_path) or {}

    assert told["allows"] == ["wg1 peer:KEY= AllowedIPs = 10.8.0.2/32, 10.9.0.0/16"]

"""What interfaces are, and which address Gloo takes of them."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from yoked.agent.interfaces import Entry, describe, entries, kind_of

UP, LOOPBACK, POINT_TO_POINT = 0x41, 0x49, 0x51


def entry(name: str, address: str, flags: int = UP, prefix: int = 24) -> Entry:
    return Entry(name, flags, ip_address(address), prefix)


def test_this_machines_loopback_is_found_with_its_mask() -> None:
    found = [each for each in entries() if str(each.address) == "127.0.0.1"]

    assert found
    assert found[0].prefix == 8
    assert kind_of(found[0].name, found[0].flags) == "loopback"


def test_every_address_that_is_found_can_be_bound() -> None:
    for each in entries():
        if each.address.is_link_local:
            continue
        family = socket.AF_INET if each.address.version == 4 else socket.AF_INET6
        with socket.socket(family) as bound:
            bound.bind((str(each.address), 0))


def test_gloo_takes_the_first_address(tmp_path: Path) -> None:
    own = [entry("eth0", "10.0.0.1"), entry("eth0", "10.0.0.2"), entry("eth0", "fd00::1")]

    found = describe(own, tmp_path)

    assert found[0]["gloo_address"] == "10.0.0.1"
    assert [each["address"] for each in found[0]["addresses"]] == [
        "10.0.0.1",
        "10.0.0.2",
        "fd00::1",
    ]


def test_a_link_local_ipv6_address_is_not_for_gloo(tmp_path: Path) -> None:
    found = describe([entry("eth0", "fe80::1")], tmp_path)

    assert found[0]["gloo_address"] is None
    assert found[0]["addresses"][0]["link_local"] is True


def test_a_cable_without_anybody_who_gives_addresses_can_be_used(tmp_path: Path) -> None:
    assert describe([entry("eth0", "169.254.3.4")], tmp_path)[0]["gloo_address"] == "169.254.3.4"


def test_what_is_down_or_has_no_carrier_is_left_out(tmp_path: Path) -> None:
    own = [entry("eth0", "10.0.0.1", 0x0), entry("docker0", "172.17.0.1", 0x1)]

    assert describe(own, tmp_path) == []


def test_a_label_is_an_interface_of_its_own_with_the_devices_figures(tmp_path: Path) -> None:
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "mtu").write_text("9000\n")
    (tmp_path / "eth0" / "speed").write_text("2500\n")

    found = describe([entry("eth0", "10.0.0.1"), entry("eth0:1", "10.0.1.1")], tmp_path)

    assert [each["name"] for each in found] == ["eth0", "eth0:1"]
    assert {each["mtu_bytes"] for each in found} == {9000}
    assert {each["speed_bit_per_s"] for each in found} == {2_500_000_000}


def test_a_device_without_a_speed_has_none(tmp_path: Path) -> None:
    (tmp_path / "wlan0").mkdir()
    (tmp_path / "wlan0" / "speed").write_text("-1\n")

    assert describe([entry("wlan0", "10.0.0.1")], tmp_path)[0]["speed_bit_per_s"] is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enp4s0", "physical"),
        ("en0", "physical"),
        ("docker0", "docker"),
        ("br-0123456789ab", "docker"),
        ("virbr0", "bridge"),
        ("tailscale0", "vpn"),
        ("wg0", "vpn"),
        ("utun3", "vpn"),
        ("ztklhq2fnx", "vpn"),
        ("awdl0", "wireless"),
    ],
)
def test_a_kind_is_known_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    assert kind_of(name, UP, tmp_path) == kind


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        ("bridge/forward_delay", "1500", "bridge"),
        ("wireless/status", "0", "wireless"),
        ("phy80211/index", "0", "wireless"),
        ("tun_flags", "0x1002", "vpn"),
        ("type", "65534", "vpn"),
        ("type", "1", "physical"),
    ],
)
def test_a_kind_is_known_by_what_the_kernel_says(
    tmp_path: Path, file: str, content: str, kind: str
) -> None:
    path = tmp_path / "net7" / file
    path.parent.mkdir(parents=True)
    path.write_text(content + "\n")

    assert kind_of("net7", UP, tmp_path) == kind


def test_an_end_of_a_tunnel_is_a_vpn(tmp_path: Path) -> None:
    assert kind_of("net7", POINT_TO_POINT, tmp_path) == "vpn"
    assert kind_of("lo0", LOOPBACK, tmp_path) == "loopback"

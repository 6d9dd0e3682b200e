"""Of a host's tables what the kernel made by itself is left out, and what somebody set is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.agent import tables
from yoked.agent.ask import first_lines
from yoked.agent.counters import Count
from yoked.agent.traffic import busy_cards
from yoked.records.answers import understood

ADDRESSES = """\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: eth0    inet 192.168.77.3/24 brd 192.168.77.255 scope global eth0\\       valid_lft forever
2: eth0    inet6 fd00::3/64 scope global nodad \\       valid_lft forever preferred_lft forever
2: eth0    inet6 fe80::3/64 scope link \\       valid_lft forever preferred_lft forever"""
ROUTES = """\
unicast default via 192.168.77.254 dev eth0 table main proto boot scope global
unicast 192.168.77.0/24 dev eth0 table main proto kernel scope link src 192.168.77.3
local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1
local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1
broadcast 127.255.255.255 dev lo table local proto kernel scope link src 127.0.0.1
local 192.168.77.3 dev eth0 table local proto kernel scope host src 192.168.77.3
broadcast 192.168.77.255 dev eth0 table local proto kernel scope link src 192.168.77.3
unicast fe80::/64 dev eth0 table main proto kernel scope global metric 256 pref medium
local ::1 dev lo table local proto kernel scope global metric 0 pref medium
local fe80::3 dev eth0 table local proto kernel scope global metric 0 pref medium
multicast ff00::/8 dev eth0 table local proto kernel scope global metric 256 pref medium"""
DEFAULT = "unicast default via 192.168.77.254 dev eth0 table main proto boot scope global"
PORT = (
    "5: vnet0@eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master br0 state UP "
    "mode DEFAULT group default qlen 1000\\  link/ether 96:34:08:86:d5:06 brd ff:ff:ff:ff:ff "
    "promiscuity 1 minmtu 68 maxmtu 65535 \\    veth \\    bridge_slave state forwarding "
    "priority 32 cost 2 hairpin off guard off learning off flood on isolated on locked off "
    "addrgenmode eui64 numtxqueues 2 gso_max_size 65536"
)
TUNNEL = (
    "7: vx0: <BROADCAST,NOARP,LOWER_UP> mtu 1450 qdisc noqueue state UNKNOWN mode DEFAULT "
    "group default qlen 1000\\    link/ether 72:00:00:00:00:01 brd ff:ff:ff:ff:ff "
    "promiscuity 0 \\    vxlan id 42 remote 192.168.77.1 local 192.168.77.2 dev eth0 srcport 0 0 "
    "dstport 8472 ttl auto ageing 300 udpcsum addrgenmode eui64 gso_max_size 65536"
)


def test_what_a_kernel_makes_of_its_addresses_is_left_out() -> None:
    assert list(tables.odd_routes(ROUTES.splitlines(), ADDRESSES.splitlines())) == [DEFAULT]
    assert list(tables.odd_addresses(ADDRESSES.splitlines())) == []


@pytest.mark.parametrize(
    "line",
    [
        "local 192.168.77.1 dev lo table local proto boot scope host",
        "broadcast 192.168.77.1 dev eth0 table local proto kernel scope link src 192.168.77.3",
        "unreachable 192.168.77.1 table local proto boot scope global",
        "unicast 192.168.77.1 dev tun0 table 52 proto static scope link",
    ],
)
def test_a_route_of_somebodys_is_told_as_it_stands(line: str) -> None:
    assert list(tables.odd_routes([line], ADDRESSES.splitlines())) == [line]


def test_an_address_with_another_broadcast_address_or_a_doubtful_one_is_told() -> None:
    odd = [
        "2: eth0    inet 192.168.77.3/24 brd 192.168.77.1 scope global eth0\\  valid_lft forever",
        "2: eth0    inet6 fd00::3/64 scope global tentative dadfailed \\  valid_lft forever",
    ]

    assert list(tables.odd_addresses(odd)) == [
        "eth0 inet 192.168.77.3/24 brd 192.168.77.1 scope global eth0",
        "eth0 inet6 fd00::3/64 scope global tentative dadfailed",
    ]


def test_of_an_interface_is_told_where_its_packets_go() -> None:
    assert tables.link_words(PORT) == (
        "vnet0 at eth0 mtu 1500 master br0 veth bridge_slave learning off isolated on"
    )
    assert tables.link_words(TUNNEL) == (
        "vx0 NOARP DOWN mtu 1450 vxlan id 42 remote 192.168.77.1 local 192.168.77.2 dev eth0 "
        "dstport 8472 ttl auto udpcsum gso_max_size 65536"
    )


def told(monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> dict[str, list[str] | None]:
    def lines(argv: list[str], most: int) -> tuple[list[str], bool]:
        text = next((text for word, text in said.items() if word in argv), "")
        return text.splitlines(), text != "cut"

    monkeypatch.setattr(tables, "tool", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(tables, "first_lines", lines)
    odd: list[str] = []
    health = understood("health", {"tables": tables.probe_tables()}, odd)
    assert odd == []
    found: dict[str, list[str] | None] = health["tables"]
    return found


def test_a_table_that_is_not_read_to_its_end_is_unknown_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = told(monkeypatch, {"route": "cut", "address": ADDRESSES, "rule": "0:\tfrom all lookup "
                               "local\n100:\tfrom all fwmark 0x77 lookup 300"})  # fmt: skip

    assert found["routes"] is None
    assert found["rules"] is not None
    assert "100: from all fwmark 0x77 lookup 300" in found["rules"]
    assert found["entries"] == []


def test_entries_that_a_bridge_was_told_are_told_and_those_that_it_learnt_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = (
        "02:00:00:00:00:01 dev vnet1 master br0 static\n02:00:00:00:00:02 dev lan0 master br0\n"
        "96:34:08:86:d5:06 dev lan0 master br0 permanent\n33:33:00:00:00:01 dev lan0 self permanent"
    )
    found = told(monkeypatch, {"fdb": entries, "link": PORT.replace("vnet0@eth0", "br0 ")
                               .replace("veth", "bridge")})  # fmt: skip

    assert found["entries"] == ["02:00:00:00:00:01 dev vnet1 master br0 static"]


def test_a_program_that_prints_without_end_is_ended() -> None:
    assert first_lines(["yes"], 3) == (["y", "y", "y"], False)
    assert first_lines(["sleep", "9"], 3, 0.05) == ([], False)
    assert first_lines(["false"], 3) == ([], False)
    assert first_lines(["/no/such/program"], 3) == ([], False)
    assert first_lines(["echo", "one"], 3) == (["one"], True)


def test_a_card_is_busy_only_with_much_in_the_time_between_two_readings() -> None:
    first = Count(10.0, {"eth0": (0, 0), "eth1": (0, 0)})

    assert busy_cards(first, Count(10.1, {"eth0": (0, 12_500_000), "eth1": (9, 9)})) == {
        "eth0": {"rx_bit_per_s": 0.0, "tx_bit_per_s": pytest.approx(1e9)}
    }
    # Our own questions, in a moment.
    assert busy_cards(first, Count(10.03, {"eth0": (300_000, 9_000)})) == {}
    assert busy_cards(first, Count(10.001, {"eth0": (0, 12_500_000)})) == {}


def test_what_units_deny_is_told_with_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system/ssh.service.d"
    folder.mkdir(parents=True)
    denied = "[Service]\n IPAddressDeny=192.168.77.1\nIPAddressAllow=10.0.0.0/8\n"
    (folder / "guest.conf").write_text(denied)
    (folder / "restart.conf").write_text(
        "[Service]\nRestart=always\nRestrictAddressFamilies=AF_INET\n"
    )

    assert list(tables.denials(tmp_path)) == [
        f"{folder}/guest.conf:2 IPAddressDeny=192.168.77.1",
        f"{folder}/guest.conf:3 IPAddressAllow=10.0.0.0/8",
        f"{folder}/restart.conf:3 RestrictAddressFamilies=AF_INET",
    ]


def test_of_an_interface_over_another_the_mode_is_told() -> None:
    line = (
        "4: macvtap0@eth0: <BROADCAST,UP> mtu 1500 qdisc noop mode DEFAULT group default \\    "
        "link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff \\    macvtap mode passthru"
    )

    assert tables.link_words(line) == "macvtap0 at eth0 mtu 1500 macvtap mode passthru"

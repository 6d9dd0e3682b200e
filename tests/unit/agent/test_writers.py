"""Programs that change the network again and again are found by their own text; others are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yoked.agent.writers import probe_writers


def process(proc: Path, pid: int, name: str, *argv: str) -> None:
    own = proc / str(pid)
    own.mkdir(parents=True)
    (own / "comm").write_text(f"{name}\n")
    (own / "cmdline").write_bytes(b"\0".join(map(os.fsencode, argv)) + b"\0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/stat").write_text("")
    process(tmp_path / "proc", 1, "systemd", "/sbin/init")
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("while sleep 1; do ss -K dst $1 dport != :22; done", ["connections"]),
        ("while :; do\n  ip link set eth0 down\n  ip route add $r\ndone", ["links", "routes"]),
        ("while sleep 3; do ip -4 addr add 10.0.0.1/24 dev eth0; done", ["addresses"]),
        ("while true; do nft 'table inet corp { }'; done", ["rules"]),
        ("while true; do\n  sudo iptables -A INPUT -j DROP\ndone", ["rules"]),
        ("while true; do tc qdisc replace dev eth0 root tbf; done", ["queues"]),
        ("until false; do sysctl -qw net.ipv4.ip_forward=0; done", ["settings"]),
        ("while sleep 1; do prlimit --pid $p --as=8000; done", ["limits"]),
        # What only looks, what is a comment, and what does not go on.
        ("while true; do nft list ruleset; ip addr show; tc -s qdisc show; done", []),
        ("while true; do sleep 1; done  # ip link set eth0 down", []),
        ("ip link set eth0 up", []),
    ],
)
def test_a_script_that_goes_on_is_told_with_what_it_changes(
    proc: Path, tmp_path: Path, text: str, changes: list[str]
) -> None:
    (tmp_path / "flap").write_text(text)
    process(proc, 77, "bash", "guardd", str(tmp_path / "flap"), "10.0.0.1")

    found = (probe_writers(proc) or {})["loops"]

    assert [each["changes"] for each in found] == ([changes] if changes else [])
    assert all(each["pid"] == 77 and "flap" in each["command"] for each in found)


def test_a_program_in_words_and_one_of_pythons_are_read_too(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text('while True:\n    run(["ip", "link", "set", "eth0", "down"])\n')
    process(proc, 7, "sh", "sh", "-c", "while :; do ip addr flush dev eth0; done")
    process(proc, 8, "python3.11", "python3", "-u", str(tmp_path / "x.py"))
    process(proc, 9, "watch", "watch", "-n1", "ip route del default")
    process(proc, 10, "vim", "vim", str(tmp_path / "x.py"))

    found = (probe_writers(proc) or {})["loops"]

    assert {each["pid"]: each["changes"] for each in found} == {
        7: ["addresses"],
        8: ["links"],
        9: ["routes"],
    }
    assert next(each["words"] for each in found if each["pid"] == 8) == "run ip link set eth0 down"


def test_a_program_in_another_network_is_left_out(proc: Path, tmp_path: Path) -> None:
    for pid, network in ((7, "net:[1]"), (8, "net:[2]")):
        process(proc, pid, "sh", "sh", "-c", "while :; do ip addr flush dev eth0; done")
        (proc / str(pid) / "ns").mkdir()
        (proc / str(pid) / "ns/net").symlink_to(network)
    (proc / "self/ns").mkdir()
    (proc / "self/ns/net").symlink_to("net:[1]")

    found = (probe_writers(proc) or {})["loops"]

    assert [each["pid"] for each in found] == [7]


def test_who_renews_addresses_is_told_unless_others_are_hidden(proc: Path, tmp_path: Path) -> None:
    process(proc, 5, "NetworkManager", "/usr/sbin/NetworkManager")
    hidden = tmp_path / "hidden"
    (hidden / "self").mkdir(parents=True)
    (hidden / "self/stat").write_text("")

    assert (probe_writers(proc) or {})["managers"] == ["NetworkManager"]
    assert (probe_writers(hidden) or {})["managers"] is None
    assert probe_writers(tmp_path / "none") is None


def test_a_program_that_makes_packets_by_itself_is_told_and_who_asks_for_an_address_is_not(
    proc: Path,
) -> None:
    (proc / "net").mkdir()
    (proc / "net/packet").write_text(
        "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"
        "0000000000000000 3      3    0806   2     1 0      0      4711\n"
        "0000000000000000 3      3    0800   2     1 0      0      4712\n"
    )
    for pid, name, inode in ((77, "python3", 4711), (78, "dhclient", 4712), (79, "bash", 4713)):
        process(proc, pid, name, f"{name}-run", "eth0")
        (proc / str(pid) / "fd").mkdir()
        (proc / str(pid) / "fd/3").symlink_to(f"socket:[{inode}]")

    assert (probe_writers(proc) or {})["raw"] == [{"pid": 77, "command": "python3-run eth0"}]

"""A firewall's rules are read as its own tools print them, and opened in its own words."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.builders import firewall

from yoked.doctor.firewalls import allow, drops_outgoing, kind_of, limits_rate, name_of
from yoked.doctor.ruleset import Chain, chains

PEERS = ["192.168.1.11", "192.168.1.13"]
OWN_TABLE = """
table inet filter {
\tset friends {
\t\ttype ipv4_addr
\t\telements = { 10.0.0.1 }
\t}
\tchain guard {
\t\ttcp dport 22 accept
\t\tdrop
\t}
\tchain input {
\t\ttype filter hook input priority filter; policy accept;
\t\tct state established,related accept
\t\tjump guard
\t}
\tchain forward {
\t\ttype filter hook forward priority filter; policy drop;
\t}
\tchain output {
\t\ttype filter hook output priority filter; policy accept;
\t}
}
""".strip().splitlines()
OF_IPTABLES = """
table ip filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t\txt match "tcp" counter packets 0 bytes 0 accept
\t}
}
table ip6 filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t}
}
""".strip().splitlines()


def commands(kind: str, rules: list[str] | None = None, **more: object) -> list[str]:
    told = {**firewall(kind, rules), **more}
    return [fix.command for fix in allow("garage", told, PEERS)]


def test_each_firewall_is_opened_by_its_own_line() -> None:
    assert commands("ufw") == [f"ufw prepend allow from {peer}" for peer in PEERS]
    assert commands("iptables")[0] == "iptables -I INPUT -s 192.168.1.11 -j ACCEPT"
    assert commands("firewalld")[1] == (
        "firewall-cmd --zone=trusted --add-source=192.168.1.13 && "
        "firewall-cmd --permanent --zone=trusted --add-source=192.168.1.13"
    )


def test_every_line_needs_root_and_can_be_taken_back() -> None:
    for kind in ("ufw", "iptables", "firewalld", "nft", "macos"):
        fixes = allow("garage", firewall(kind), PEERS, program="/usr/bin/python3")
        assert all(fix.root and fix.undo and fix.host == "garage" for fix in fixes), kind


def test_nft_gets_its_rule_at_the_top_of_the_very_chain_that_drops() -> None:
    found = commands("nft", OWN_TABLE)

    where, peers = "inet filter input", "'{ 192.168.1.11, 192.168.1.13 }'"
    assert found == [f"nft insert rule {where} ip saddr {peers} accept comment yoked"]


def test_chains_that_drop_by_another_one_are_known_and_forwarding_is_none_of_ours() -> None:
    assert chains(OWN_TABLE) == [
        Chain("inet", "filter", "input", "input", refuses=True),
        Chain("inet", "filter", "forward", "forward", refuses=True),
        Chain("inet", "filter", "output", "output", refuses=False),
    ]


def test_chains_that_call_each_other_come_to_an_end() -> None:
    rules = """
    table ip loop {
        chain input {
            type filter hook input priority 0; policy accept;
            jump a
        }
        chain a {
            jump b
        }
        chain b {
            goto a
        }
    }
    """.splitlines()

    assert [chain.refuses for chain in chains(rules)] == [False]


def test_a_table_that_iptables_did_not_make_is_none_of_iptables() -> None:
    nat = ["table ip vmforward {", "chain pre {", "type nat hook prerouting priority dstnat;"]

    assert kind_of(firewall("nft", [*nat, "dnat to 192.168.122.50", "}", "}"])) == "nft"


def test_rules_that_iptables_made_are_opened_by_iptables() -> None:
    told = {**firewall("nft", OF_IPTABLES), "tools": ["nft", "iptables"]}

    assert kind_of(told) == "iptables"
    assert [fix.command for fix in allow("garage", told, ["fd00::1"])] == [
        "ip6tables -I INPUT -s fd00::1 -j ACCEPT"
    ]


def test_without_iptables_its_chains_get_addresses_of_their_family_alone() -> None:
    told = {**firewall("nft", OF_IPTABLES), "tools": ["nft"]}

    assert [fix.command for fix in allow("garage", told, PEERS[:1])] == [
        "nft insert rule ip filter INPUT ip saddr 192.168.1.11 accept comment yoked"
    ]


def test_where_rules_cannot_be_read_the_line_looks_for_the_chains_itself() -> None:
    (line,) = commands("nft")

    assert line.startswith("nft list chains | awk ")
    assert "ip saddr { 192.168.1.11, 192.168.1.13 } accept" in line
    assert line.endswith("| nft -f -")


@pytest.mark.skipif(shutil.which("awk") is None, reason="needs awk")
def test_that_line_names_every_chain_of_the_input_and_no_other() -> None:
    (line,) = commands("nft")
    script = line.removeprefix("nft list chains | ").removesuffix(" | nft -f -")
    bridge = ["table bridge b {", "\tchain in {", "\t\ttype filter hook input priority 0;", "\t}"]

    made = subprocess.run(
        ["sh", "-c", script],
        input="\n".join([*OWN_TABLE, *OF_IPTABLES, *bridge, "}"]),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()

    rule = "ip saddr { 192.168.1.11, 192.168.1.13 } accept comment yoked"
    assert made == [f"insert rule inet filter input {rule}", f"insert rule ip filter INPUT {rule}"]


@pytest.mark.skipif(shutil.which("awk") is None, reason="needs awk")
def test_the_way_back_deletes_the_very_rules_that_were_made() -> None:
    (fix,) = allow("garage", firewall("nft"), PEERS)
    assert fix.undo is not None
    script = fix.undo.removeprefix("nft -a list ruleset | ").removesuffix(" | nft -f -")
    ruleset = """
table inet filter { # handle 4
\tchain input { # handle 1
\t\ttype filter hook input priority filter; policy drop;
\t\tip saddr 192.168.1.11 accept comment "yoked" # handle 9
\t\ttcp dport 22 accept comment "mine" # handle 3
\t}
}
"""

    made = subprocess.run(
        ["sh", "-c", script], input=ruleset, capture_output=True, text=True, check=True
    ).stdout

    assert made == "delete rule inet filter input handle 9\n"


def test_what_is_not_installed_is_not_used() -> None:
    assert commands("ufw", tools=["iptables"])[0].startswith("iptables -I INPUT")
    assert commands("firewalld", tools=["nft"])[0].startswith("nft list chains")
    assert allow("garage", None, PEERS)[0].command.startswith("nft list chains")


def test_outgoing_traffic_is_opened_towards_the_peers() -> None:
    for kind, words in (
        ("ufw", "ufw prepend allow out to 192.168.1.11"),
        ("iptables", "iptables -I OUTPUT -d 192.168.1.11 -j ACCEPT"),
        ("firewalld", "ip daddr 192.168.1.11"),
    ):
        found = allow("garage", firewall(kind), PEERS[:1], "out")
        assert words in found[0].command


def test_macos_opens_for_the_program_that_trains(snapshot: SnapshotAssertion) -> None:
    (fix,) = allow("mac", firewall("macos"), PEERS, program="/opt/my venv/bin/python")

    assert fix.command == snapshot
    assert "--unblockapp" in fix.command


@pytest.mark.parametrize(
    ("kind", "rules", "drops"),
    [
        ("ufw", ["Default: deny (incoming), deny (outgoing), disabled (routed)"], True),
        ("ufw", ["Default: deny (incoming), allow (outgoing), disabled (routed)"], False),
        ("ufw", ["192.168.1.11   DENY OUT   Anywhere"], True),
        ("iptables", [":INPUT DROP [0:0]", ":OUTPUT ACCEPT [0:0]"], False),
        ("iptables", ["-A OUTPUT -p tcp -j REJECT --reject-with icmp-port-unreachable"], True),
        ("iptables", [":OUTPUT DROP [0:0]"], True),
        ("nft", OWN_TABLE, False),
        ("nft", [line.replace("output priority filter; policy accept", "output priority filter; "
                              "policy drop") for line in OWN_TABLE], True),
        ("nft", None, None),
        ("firewalld", ["public (active)"], None),
    ],
)  # fmt: skip
def test_whether_it_drops_what_leaves_is_read_from_its_rules(
    kind: str, rules: list[str] | None, drops: bool | None
) -> None:
    assert drops_outgoing(firewall(kind, rules)) is drops


@pytest.mark.parametrize(
    "line",
    [
        "tcp flags syn limit rate over 6/minute drop",
        "-A INPUT -m recent --update --seconds 30 --hitcount 6 -j DROP",
        "22/tcp   LIMIT IN   Anywhere",
        "ct count over 4 drop",
    ],
)
def test_a_limit_of_new_connections_is_recognised(line: str) -> None:
    assert limits_rate(firewall("nft", [line]))
    assert not limits_rate(firewall("nft", ["tcp dport 22 accept"]))


def test_what_is_not_told_has_no_name() -> None:
    assert name_of({"kind": None}) == "a firewall"
    assert name_of(firewall("ufw")) == "ufw"

"""How faults are written, and what is said of mistakes."""

from __future__ import annotations

import shlex
from ipaddress import IPv4Interface
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.lab.faults import FAULTS, apply, kind_named
from yoked.lab.faults.args import Link, Ports, Variable
from yoked.lab.faults.base import Fault
from yoked.lab.faults.textfiles import StartFile

# Each with the words that it cannot do without.
PROMISED = [
    "cut alpha",
    "one-way alpha beta",
    "firewall alpha",
    "slow-link alpha 1mbit",
    "lossy alpha 1",
    "mtu alpha 1400",
    "stop alpha",
    "suspend alpha",
    "kill alpha",
    "reboot alpha",
    "slow-cpu alpha 0.5",
    "oom alpha 64",
    "disk-full alpha",
    "stale-process alpha 80",
    "hosts-loopback alpha",
    "no-resolve alpha beta",
    "clock-skew alpha 1",
    "different-torch alpha 2.0",
    "different-data alpha",
    "different-code alpha",
    "ipv6-first alpha",
    "client-isolation alpha",
    "interface-down alpha",
    "no-address alpha",
    "wrong-netmask alpha 32",
    "same-address alpha beta",
    "foreign-address alpha",
    "no-route alpha beta",
    "kill-switch alpha",
    "wrong-neighbour alpha beta",
    "port-range alpha 2000 3000",
    "firewall-out alpha",
    "closed-ports alpha 80-90",
    "connection-limit alpha 9",
    "ufw alpha",
    "firewalld alpha",
    "iptables alpha",
    "stale-name alpha beta 10.0.0.9",
    "silent-dns alpha",
    "no-ssh alpha",
    "host-key alpha",
    "loose-keys alpha",
    "login-shell alpha",
    "noisy-shell alpha",
    "exiting-shell alpha",
    "slow-shell alpha 9",
    "exported alpha A=1",
    "limit alpha nofile 9",
    "busy-cpu alpha",
    "taken-port alpha 80",
    "battery alpha",
    "logout-kills alpha",
    "no-inodes alpha",
    "read-only alpha /var",
    "no-exec alpha /var",
    "small-shm alpha 64",
    "broken-torch alpha",
    "no-compiler alpha",
]


def parsed(lab: Any, line: str) -> Fault:
    kind, *words = line.split()
    return kind_named(kind).parse(lab, words)


def test_all_promised_faults_are_there_once() -> None:
    assert sorted(kind.name for kind in FAULTS) == sorted(line.split()[0] for line in PROMISED)


@pytest.mark.parametrize("line", PROMISED)
def test_a_fault_says_what_it_does_and_how_it_is_written(paper_lab: Any, line: str) -> None:
    fault = parsed(paper_lab, line)

    assert fault.kind.usage.split()[0] == fault.kind.name
    assert fault.kind.summary
    assert fault.host in fault.text
    assert "\n" not in fault.kind.usage + fault.kind.summary + fault.text


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("cut alpha", [Link("alpha", None)]),
        ("cut alpha:eth0", [Link("alpha", "eth0")]),
        ("cut alpha beta", [Link("alpha", None, "beta")]),
        ("slow-link alpha 20mbit", [Link("alpha", None), 20e6]),
        ("slow-link alpha 20 Mbit/s", [Link("alpha", None), 20e6]),
        ("lossy beta 2.5%", [Link("beta", None), 2.5]),
        ("lossy beta 2.5", [Link("beta", None), 2.5]),
        ("mtu beta:eth0 1400", [Link("beta", "eth0"), 1400]),
        ("firewall beta", ["beta", (), False, False]),
        ("firewall beta 80 8000 --reject", ["beta", (80, 8000), True, False]),
        ("firewall --close-rendezvous beta", ["beta", (), False, True]),
        ("stop alpha", ["alpha", None]),
        ("stop alpha 17", ["alpha", 17]),
        ("oom alpha 256", ["alpha", 256]),
        ("clock-skew alpha -30", ["alpha", -30.0]),
        ("wrong-netmask alpha:eth0 /32", [Link("alpha", "eth0"), 32]),
        ("foreign-address alpha", [Link("alpha", None), IPv4Interface("10.0.2.15/24")]),
        ("no-route alpha beta", ["alpha", "beta", "unreachable"]),
        ("no-route alpha beta prohibit", ["alpha", "beta", "prohibit"]),
        ("closed-ports alpha 32768-45000", ["alpha", Ports(32768, 45000)]),
        ("port-range alpha 32768 45000", ["alpha", Ports(32768, 45000)]),
        ("busy-cpu alpha", ["alpha", 1]),
        ("read-only alpha /var/tmp/", ["alpha", "/var/tmp"]),
        ("different-data alpha", ["alpha", None]),
        ("different-data alpha /data", ["alpha", "/data"]),
    ],
)
def test_words_become_the_values_of_a_fault(
    paper_lab: Any, line: str, values: list[object]
) -> None:
    assert list(parsed(paper_lab, line).values) == values


def test_a_variable_keeps_its_value_as_it_is(paper_lab: Any) -> None:
    values = [
        parsed(paper_lab, f"exported alpha {words}").values[1]
        for words in ("LD_PRELOAD=/gone.so", "EMPTY=", "A=B=C")
    ]

    assert all(isinstance(each, Variable) for each in values)
    assert [(each.name, each.value) for each in values] == [
        ("LD_PRELOAD", "/gone.so"),
        ("EMPTY", ""),
        ("A", "B=C"),
    ]


def test_free_text_is_quoted_where_a_shell_reads_it(paper_lab: Any) -> None:
    fault = kind_named("exported").parse(paper_lab, ["alpha", "A='; reboot $(id)"])
    (effect,) = fault.kind.effects
    assert isinstance(effect, StartFile)

    line = effect.change(fault, paper_lab, "").splitlines()[0]

    assert shlex.split(line) == ["export", "A='; reboot $(id)"]


@pytest.mark.parametrize(
    ("line", "named", "hint"),
    [
        ("cut", ["HOST"], "cut HOST[:INTERFACE] | cut HOST OTHER"),
        ("cut alhpa", ["'alhpa'"], "'alpha'"),
        ("cut alpha:eht0", ["alpha", "'eht0'"], "'eth0'"),
        ("cut alpha beta alpha", ["beta alpha"], "cut"),
        ("one-way alpha alpha", ["alpha"], "one-way HOST OTHER"),
        ("kill alpha --now", ["'--now'"], "kill HOST"),
        ("slow-link alpha", ["RATE"], "slow-link HOST[:INTERFACE] RATE"),
        ("slow-link alpha 20M", ["'20M'"], "20mbit"),
        ("lossy alpha 101", ["PERCENT", "'101'", "100"], "lossy HOST[:INTERFACE] PERCENT"),
        ("lossy alpha nan", ["PERCENT", "'nan'"], "lossy"),
        ("mtu alpha 1400.5", ["BYTES", "'1400.5'", "whole"], "mtu"),
        ("firewall alpha 0", ["PORT", "'0'", "65535"], "firewall"),
        ("stop alpha 1", ["PID", "'1'"], "stop HOST [PID]"),
        ("slow-cpu alpha 0", ["FRACTION", "'0'"], "slow-cpu HOST FRACTION"),
        ("different-torch alpha new", ["'new'"], "2.12.1"),
        ("same-address alpha alpha", ["alpha"], "same-address"),
        ("wrong-netmask alpha 33", ["LENGTH", "'33'"], "wrong-netmask HOST[:INTERFACE] LENGTH"),
        ("foreign-address alpha 10.0.2", ["'10.0.2'"], "foreign-address"),
        ("no-route alpha beta gone", ["'gone'", "blackhole"], "no-route HOST OTHER"),
        ("closed-ports alpha 80", ["'80'"], "32768-45000"),
        ("closed-ports alpha 90-80", ["LAST", "'80'"], "closed-ports HOST FIRST-LAST"),
        ("port-range alpha 80 90", ["FIRST", "'80'", "1024"], "port-range"),
        ("stale-name alpha beta home", ["'home'"], "stale-name"),
        ("login-shell alpha nologin", ["'nologin'"], "login-shell HOST [SHELL]"),
        ("exported alpha OMP", ["'OMP'"], "OMP_NUM_THREADS=1"),
        ("limit alpha files 3", ["'files'", "nofile"], "limit HOST NAME COUNT"),
        ("read-only alpha /", ["'/'"], "read-only HOST FOLDER"),
        ("no-exec alpha tmp", ["'tmp'"], "no-exec HOST FOLDER"),
    ],
)
def test_a_mistake_is_named_with_the_way_to_write_it(
    paper_lab: Any, line: str, named: list[str], hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(paper_lab, line)

    assert [word for word in named if word not in refused.value.what] == []
    assert any(hint in fix for fix in refused.value.fix)


def test_an_unknown_fault_is_answered_with_the_nearest(
    paper_lab: Any, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as refused:
        apply(paper_lab, "fire-wall", ["alpha"])
    assert str(refused.value) == snapshot

    assert "'firewall'" in refused.value.fix[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("cut alpha", "cut alpha", True),
        ("cut alpha", "cut beta", False),
        ("cut alpha", "cut alpha beta", False),
        ("cut alpha beta", "cut beta alpha", True),
        ("cut alpha", "lossy alpha 1", False),
        ("lossy alpha 1", "lossy alpha:eth0 2", True),
        ("one-way alpha beta", "one-way beta alpha", False),
        ("stop alpha", "stop alpha 17", False),
        ("no-resolve alpha a", "no-resolve alpha b", False),
        ("no-resolve alpha a", "hosts-loopback alpha", False),
        ("firewall alpha", "firewall alpha 80", True),
        ("different-data alpha /a", "different-data alpha /b", False),
        ("different-data alpha /a", "different-code alpha /a", False),
        ("stale-process alpha 1", "stale-process alpha 2", False),
        ("no-route alpha beta", "no-route alpha beta blackhole", True),
        ("no-route alpha beta", "no-route beta alpha", False),
        ("exported alpha A=1", "exported alpha A=2", True),
        ("exported alpha A=1", "exported alpha B=1", False),
        ("limit alpha nofile 9", "limit alpha nproc 9", False),
        ("read-only alpha /var", "read-only alpha /var/tmp", False),
        ("read-only alpha /var", "no-exec alpha /var", False),
    ],
)
def test_the_same_fault_twice_is_told_from_two_faults(
    paper_lab: Any, one: str, other: str, same: bool
) -> None:
    assert parsed(paper_lab, one).same_as(parsed(paper_lab, other)) is same
    assert parsed(paper_lab, other).same_as(parsed(paper_lab, one)) is same

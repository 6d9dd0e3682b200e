"""How faults are written, and what is said of mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.errors import UsageError
from yoked.lab.faults import FAULTS, apply, kind_named
from yoked.lab.faults.base import Fault
from yoked.lab.faults.firewall import Firewall
from yoked.lab.faults.links import Cut, Lossy, Mtu, SlowLink
from yoked.lab.faults.machine import ClockSkew, Oom
from yoked.lab.faults.processes import Stop

PROMISED = [
    "cut",
    "one-way",
    "firewall",
    "slow-link",
    "lossy",
    "mtu",
    "stop",
    "suspend",
    "kill",
    "reboot",
    "slow-cpu",
    "oom",
    "disk-full",
    "stale-process",
    "hosts-loopback",
    "no-resolve",
    "clock-skew",
    "different-torch",
    "different-data",
    "different-code",
    "ipv6-first",
]


def parsed(lab: Any, line: str) -> Fault:
    kind, *words = line.split()
    return kind_named(kind).parse(lab, words)


def test_all_promised_faults_are_there_once() -> None:
    assert sorted(kind.KIND for kind in FAULTS) == sorted(PROMISED)


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.KIND)
def test_a_fault_says_what_it_does_and_how_it_is_written(kind: type[Fault]) -> None:
    assert kind.USAGE.split()[0] == kind.KIND
    assert kind.SUMMARY
    assert "\n" not in kind.USAGE + kind.SUMMARY


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("cut alpha", Cut("alpha", None)),
        ("cut alpha:eth0", Cut("alpha", "eth0")),
        ("cut alpha beta", Cut("alpha", None, "beta")),
        ("slow-link alpha 20mbit", SlowLink("alpha", None, 20e6)),
        ("slow-link alpha 20 Mbit/s", SlowLink("alpha", None, 20e6)),
        ("lossy beta 2.5%", Lossy("beta", None, 0.025)),
        ("lossy beta 2.5", Lossy("beta", None, 0.025)),
        ("mtu beta:eth0 1400", Mtu("beta", "eth0", 1400)),
        ("firewall beta", Firewall("beta", (), False, False)),
        ("firewall beta 80 8000 --reject", Firewall("beta", (80, 8000), True, False)),
        ("firewall --close-rendezvous beta", Firewall("beta", (), False, True)),
        ("stop alpha", Stop("alpha", None)),
        ("stop alpha 17", Stop("alpha", 17)),
        ("oom alpha 256", Oom("alpha", 256 * 2**20)),
        ("clock-skew alpha -30", ClockSkew("alpha", -30.0)),
    ],
)
def test_words_become_a_fault(paper_lab: Any, line: str, meant: Fault) -> None:
    assert parsed(paper_lab, line) == meant


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("cut", "HOST is missing", "yoked lab fault cut HOST[:INTERFACE] | cut HOST OTHER"),
        ("cut alhpa", "there is no host 'alhpa'", "did you mean 'alpha'?"),
        ("cut alpha:eht0", "alpha has no interface 'eht0'", "did you mean 'eth0'?"),
        ("cut alpha beta alpha", "'beta alpha' is more", "yoked lab fault cut"),
        ("one-way alpha alpha", "alpha is named twice", "yoked lab fault one-way HOST OTHER"),
        ("kill alpha --now", "'--now' is more", "yoked lab fault kill HOST"),
        ("slow-link alpha", "RATE is missing", "slow-link HOST[:INTERFACE] RATE"),
        ("slow-link alpha 20M", "'20M' is not a quantity", "20mbit"),
        ("lossy alpha 101", "PERCENT is '101'", "lossy HOST[:INTERFACE] PERCENT"),
        ("lossy alpha nan", "PERCENT is 'nan'", "lossy"),
        ("mtu alpha 1400.5", "BYTES is '1400.5': it must be a whole", "mtu"),
        ("firewall alpha 0", "PORT is '0': it must be from 1 to 65535", "firewall"),
        ("stop alpha 1", "PID is '1'", "stop HOST [PID]"),
        ("slow-cpu alpha 0", "FRACTION is '0'", "slow-cpu HOST FRACTION"),
        ("different-torch alpha new", "'new' is not a version", "2.12.1"),
    ],
)
def test_a_mistake_is_named_with_the_way_to_write_it(
    paper_lab: Any, line: str, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(paper_lab, line)

    assert what in refused.value.what
    assert any(hint in fix for fix in refused.value.fix)


def test_an_unknown_fault_is_answered_with_the_nearest(paper_lab: Any) -> None:
    with pytest.raises(UsageError, match="there is no fault 'fire-wall'") as refused:
        apply(paper_lab, "fire-wall", ["alpha"])

    assert "did you mean 'firewall'?" in refused.value.fix[0]


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
    ],
)
def test_the_same_fault_twice_is_told_from_two_faults(
    paper_lab: Any, one: str, other: str, same: bool
) -> None:
    assert parsed(paper_lab, one).same_as(parsed(paper_lab, other)) is same
    assert parsed(paper_lab, other).same_as(parsed(paper_lab, one)) is same

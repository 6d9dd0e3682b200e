"""The choice of interfaces follows from what was dialled, and from nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import HostError
from yoked.fleet.choose import Attempt, Candidate, choose, reached_by_all

MBIT = 1e6 / 8
LAN = 1000 * MBIT


def candidate(host: str, interface: str, address: str, kind: str = "physical") -> Candidate:
    return Candidate(host, interface, address, kind)


ALPHA = candidate("alpha", "eth0", "192.168.7.1")
BETA = candidate("beta", "enp4s0", "192.168.7.2")
ALPHA_VPN = candidate("alpha", "wg0", "fd7a::1", "vpn")
BETA_VPN = candidate("beta", "wg0", "fd7a::2", "vpn")


def reached(target: Candidate, goodput: float | None = LAN, rtt_s: float = 1e-3) -> Attempt:
    source = "alpha" if target.host == "beta" else "beta"
    return Attempt(source, target, target.host, rtt_s=rtt_s, goodput_bytes_per_s=goodput)


def failed(target: Candidate, error: str = "ETIMEDOUT") -> Attempt:
    source = "alpha" if target.host == "beta" else "beta"
    return Attempt(source, target, error=error, error_text=f"the text of {error}")


def chosen(attempts: list[Attempt]) -> dict[str, str]:
    candidates = list(dict.fromkeys(attempt.target for attempt in attempts))
    choices = choose(["alpha", "beta"], candidates, attempts)
    return {host: choice.interface for host, choice in choices.items()}


def refusal(attempts: list[Attempt]) -> HostError:
    with pytest.raises(HostError) as caught:
        chosen(attempts)
    return caught.value


def test_a_faster_link_is_taken_though_it_is_a_vpn() -> None:
    attempts = [reached(ALPHA, 20 * MBIT), reached(BETA, 20 * MBIT)]
    attempts += [reached(ALPHA_VPN), reached(BETA_VPN)]

    assert chosen(attempts) == {"alpha": "wg0", "beta": "wg0"}


def test_of_links_within_a_fifth_ipv4_is_taken() -> None:
    attempts = [reached(ALPHA, 0.85 * LAN), reached(BETA, 0.85 * LAN)]
    attempts += [reached(ALPHA_VPN), reached(BETA_VPN)]

    assert chosen(attempts) == {"alpha": "eth0", "beta": "enp4s0"}


@pytest.mark.parametrize("worse", ["wireless", "bridge", "docker", "vpn"])
def test_of_links_within_a_fifth_a_cable_is_taken(worse: str) -> None:
    other = candidate("alpha", "aa0", "10.0.0.1", worse)

    attempts = [reached(ALPHA, 0.85 * LAN), reached(other, rtt_s=1e-6), reached(BETA)]

    assert chosen(attempts)["alpha"] == "eth0"


def test_of_two_cables_the_shorter_way_is_taken() -> None:
    other = candidate("alpha", "aa0", "10.0.0.1")

    attempts = [reached(ALPHA, rtt_s=1e-4), reached(other, rtt_s=1e-3), reached(BETA)]

    assert chosen(attempts)["alpha"] == "eth0"


def test_a_link_that_could_not_be_measured_is_taken_only_when_it_is_the_only_one() -> None:
    other = candidate("alpha", "wlan0", "10.0.0.1", "wireless")
    attempts = [reached(ALPHA, None), reached(BETA, None)]

    assert chosen(attempts)["alpha"] == "eth0"
    assert chosen([*attempts, reached(other, MBIT)])["alpha"] == "wlan0"


def test_an_address_that_the_dialler_has_itself_does_not_count() -> None:
    docker = candidate("beta", "docker0", "172.17.0.1", "docker")
    itself = Attempt("alpha", docker, answered_by="alpha", rtt_s=1e-5, goodput_bytes_per_s=9 * LAN)

    assert chosen([reached(ALPHA), itself, reached(BETA)])["beta"] == "enp4s0"


def test_all_hosts_get_one_family_though_some_have_a_faster_other_one() -> None:
    attempts = [reached(ALPHA, 20 * MBIT), reached(BETA, 20 * MBIT), reached(ALPHA_VPN)]

    assert chosen(attempts) == {"alpha": "eth0", "beta": "enp4s0"}


def test_silence_on_a_high_port_is_told_as_a_firewall_with_its_fix(
    snapshot: SnapshotAssertion,
) -> None:
    problem = refusal([reached(ALPHA), failed(BETA)])

    assert problem.what == snapshot
    assert "firewall on beta" in problem.what
    assert problem.fix == snapshot


@pytest.mark.parametrize("error", ["EHOSTUNREACH", "ENETUNREACH", "ECONNREFUSED", "ECONNRESET"])
def test_what_the_system_says_is_told_with_the_pair(
    error: str, snapshot: SnapshotAssertion
) -> None:
    problem = refusal([failed(ALPHA, error), reached(BETA)])

    assert problem.what == snapshot
    assert f"the text of {error}" in problem.what
    assert problem.fix


def test_an_address_that_two_machines_have_is_told() -> None:
    itself = Attempt("alpha", BETA, answered_by="alpha")

    assert "alpha answers there" in refusal([reached(ALPHA), itself]).what


def test_the_pair_that_is_told_is_of_a_cable_rather_than_of_docker() -> None:
    docker = candidate("beta", "docker0", "172.17.0.1", "docker")

    problem = refusal([reached(ALPHA), failed(docker, "ECONNREFUSED"), failed(BETA)])

    assert "192.168.7.2" in problem.what


def test_hosts_without_a_common_family_are_told_so(snapshot: SnapshotAssertion) -> None:
    problem = refusal([reached(ALPHA), reached(BETA_VPN)])

    assert problem.what == snapshot


def test_a_host_without_any_address_is_named() -> None:
    with raises_fault("no-interface", host="beta"):
        choose(["alpha", "beta"], [ALPHA], [reached(ALPHA)])


# ---- what holds for every network ----

HOSTS = ("alpha", "beta", "gamma")
RATES = st.sampled_from([None, 20 * MBIT, 100 * MBIT, 900 * MBIT, LAN])


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Candidate], list[Attempt]]:
    """Hosts with up to three interfaces of any family and kind; every dial ends somehow."""
    candidates = [
        Candidate(
            host,
            f"if{number}",
            f"10.{number}.0.{index}" if draw(st.booleans()) else f"fd0{number}::{index}",
            draw(st.sampled_from(["physical", "wireless", "docker", "vpn"])),
        )
        for index, host in enumerate(HOSTS, start=1)
        for number in range(draw(st.integers(1, 3)))
    ]
    attempts = [
        Attempt(
            source,
            target,
            answered_by=draw(st.sampled_from([target.host, target.host, target.host, source])),
            error=draw(st.sampled_from([None, None, None, "ETIMEDOUT"])),
            rtt_s=draw(st.sampled_from([1e-4, 1e-3])),
            goodput_bytes_per_s=draw(RATES),
        )
        for target in candidates
        for source in HOSTS
        if source != target.host
    ]
    return candidates, attempts


@given(networks(), st.randoms(use_true_random=False))
def test_a_choice_is_proved_of_one_family_fast_and_the_same_in_any_order(
    network: tuple[list[Candidate], list[Attempt]], rng: random.Random
) -> None:
    candidates, attempts = network
    usable = reached_by_all(HOSTS, candidates, attempts)
    families = [
        version
        for version in (4, 6)
        if {each.host for each in usable if each.version == version} == set(HOSTS)
    ]

    try:
        choices = choose(HOSTS, candidates, attempts)
    except HostError:
        assert not families
        return

    taken = [each for each in usable if choices[each.host].address == each.address]
    assert {each.host for each in taken} == set(HOSTS)
    assert len({each.version for each in taken}) == 1
    assert taken[0].version in families
    for own in taken:
        rivals = [each for each in usable if each.host == own.host and each.version == own.version]
        fastest = max(goodput(each, attempts) for each in rivals)
        assert goodput(own, attempts) >= 0.8 * fastest
    mixed, shuffled = list(attempts), list(candidates)
    rng.shuffle(mixed)
    rng.shuffle(shuffled)
    assert choose(HOSTS, shuffled, mixed) == choices


@given(networks())
def test_an_interface_that_nobody_reaches_changes_no_choice(
    network: tuple[list[Candidate], list[Attempt]],
) -> None:
    candidates, attempts = network
    dead = Candidate("alpha", "dead0", "172.17.0.1")
    dials = [Attempt(source, dead, error="ETIMEDOUT") for source in HOSTS[1:]]

    try:
        choices = choose(HOSTS, candidates, attempts)
    except HostError:
        with pytest.raises(HostError):
            choose(HOSTS, [dead, *candidates], [*dials, *attempts])
    else:
        assert choose(HOSTS, [dead, *candidates], [*dials, *attempts]) == choices


def goodput(target: Candidate, attempts: list[Attempt]) -> float:
    return min(
        each.goodput_bytes_per_s or 0.0
        for each in attempts
        if each.target == target and each.reached
    )

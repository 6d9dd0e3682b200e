"""Who is asked what, and what is made of the answers; the traffic itself is tested in the lab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import HostError
from yoked.fleet.discover import find_addresses, require_distinct, rounds, survey
from yoked.fleet.model import Fleet, Host


@dataclass(frozen=True)
class FakePart:
    content: Any


@dataclass
class FakeAgent:
    """An agent of a network of words. answers: who answers at an address, by who dials."""

    name: str
    addresses: dict[str, str]
    answers: dict[str, str]
    measures: bool = True
    # So many first measurements give no figure.
    vain: int = 0
    # What it says that it is inside of.
    virtual: dict[str, Any] | None = None
    listening: bool = False
    sent: list[float] = field(default_factory=list)

    def call(self, name: str, *, data: bytes = b"", timeout_s: float = 30.0, **args: Any) -> Any:
        if name == "interfaces":
            return [
                {"name": interface, "gloo_address": address, "kind": "physical"}
                for interface, address in self.addresses.items()
            ]
        if name == "health":
            return {"virtual": self.virtual}
        assert name == "dial"
        self.sent.append(args["send_s"])
        return [self._dialled(target["address"], args["send_s"]) for target in args["targets"]]

    def _dialled(self, address: str, send_s: float) -> dict[str, Any]:
        who = self.answers.get(address)
        lost = who is None or (send_s and not self.measures)
        return {
            "answered_by": None if lost else who,
            "error": "ETIMEDOUT" if lost else None,
            "error_text": "no answer" if lost else None,
            "rtt_s": None if lost else 1e-3,
            "goodput_bytes_per_s": 1e8 if len(self.sent) > 1 + self.vain and not lost else None,
        }

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Any]:
        assert name == "listen"
        self.listening = True
        try:
            yield FakePart({"port": 4000})
        finally:
            self.listening = False


ADDRESSES = {"alpha": {"eth0": "10.0.0.1"}, "beta": {"eth0": "10.0.0.2", "eth1": "10.1.0.2"}}
ANSWERS = {"10.0.0.1": "alpha", "10.0.0.2": "beta"}
HOSTS = (Host("alpha"), Host("beta"))


def network(**more: Any) -> dict[str, FakeAgent]:
    return {name: FakeAgent(name, own, ANSWERS, **more) for name, own in ADDRESSES.items()}


def test_what_everybody_reached_is_measured_and_chosen(tmp_path: Any) -> None:
    agents = network()

    found = find_addresses(Fleet("home", HOSTS, tmp_path), agents)

    assert found == {"alpha": ("eth0", "10.0.0.1"), "beta": ("eth0", "10.0.0.2")}
    assert [agent.sent for agent in agents.values()] == [[0.0, 0.1], [0.0, 0.1]]


def test_listeners_are_closed_whatever_comes_of_it(snapshot: SnapshotAssertion) -> None:
    agents = network()
    agents["alpha"].answers = {}

    with pytest.raises(HostError) as caught:
        survey(HOSTS, agents)
    assert str(caught.value) == snapshot

    assert not any(agent.listening for agent in agents.values())


@pytest.mark.parametrize(
    ("virtual", "address", "code"),
    [
        ({"container": "docker", "bridged": ["eth0"]}, "172.17.0.2", "container-bridge"),
        ({"networking": "nat"}, "172.29.48.5", "nat"),
        ({"networking": "mirrored", "inbound": "Block"}, "10.0.0.2", "wsl-firewall"),
    ],
)
def test_what_a_host_is_inside_of_is_blamed_where_nobody_reaches_it(
    virtual: dict[str, Any], address: str, code: str, snapshot: SnapshotAssertion
) -> None:
    agents = {
        "alpha": FakeAgent("alpha", {"eth0": "10.0.0.1"}, ANSWERS),
        "beta": FakeAgent("beta", {"eth0": address}, ANSWERS, virtual=virtual),
    }
    for agent in agents.values():
        agent.answers = {"10.0.0.1": "alpha"}

    with raises_fault(code, host="beta", address=address) as caught:
        survey(HOSTS, agents)

    assert str(caught.value) == snapshot


def test_a_link_that_gave_no_figure_is_measured_again() -> None:
    choices = survey(HOSTS, network(vain=2)).choices

    assert choices["beta"].goodput_bytes_per_s == 1e8


def test_a_link_whose_measurement_failed_counts_as_reached() -> None:
    choices = survey(HOSTS, network(measures=False)).choices

    assert choices["beta"].interface == "eth0"
    assert choices["beta"].goodput_bytes_per_s is None


@dataclass
class Untimed(FakeAgent):
    """It says that it was answered, and not how soon."""

    def _dialled(self, address: str, send_s: float) -> dict[str, Any]:
        return {**super()._dialled(address, send_s), "rtt_s": None}


def test_an_answer_without_its_time_is_no_bug() -> None:
    agents = {name: Untimed(name, ADDRESSES[name], ANSWERS) for name in ADDRESSES}

    choices = survey(HOSTS, agents).choices

    assert choices["beta"].rtt_s is None


@dataclass
class Mute(FakeAgent):
    """It ends its listener before it has said where that is."""

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Any]:
        yield from ()


def test_a_host_that_does_not_say_where_it_listens_is_named(snapshot: SnapshotAssertion) -> None:
    agents = {name: Mute(name, ADDRESSES[name], ANSWERS) for name in ADDRESSES}

    with pytest.raises(HostError) as caught:
        survey(HOSTS, agents)
    assert str(caught.value) == snapshot


def test_an_interface_that_is_named_but_not_there_is_told() -> None:
    hosts = (Host("alpha", interface="eth5"), Host("beta"))

    with raises_fault("interface-gone", interface="eth5", there="eth0"):
        survey(hosts, network())


def test_two_entries_that_are_one_machine_are_told() -> None:
    facts = {
        "i9": {"machine": "1", "hostname": "tower"},
        "laptop": {"machine": "2", "hostname": "lap"},
        "192.168.1.36": {"machine": "1", "hostname": "tower"},
    }

    with raises_fault("same-machine", name="192.168.1.36", hostname="tower"):
        require_distinct(facts)
    require_distinct({name: facts[name] for name in ("i9", "laptop")})


@given(st.integers(2, 9))
def test_rounds_have_every_pair_once_and_nobody_twice(number: int) -> None:
    names = [f"host{index}" for index in range(number)]

    found = rounds(names)

    pairs = [frozenset(pair) for pairs in found for pair in pairs]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names, 2)))
    for each in found:
        busy = [name for pair in each for name in pair]
        assert len(busy) == len(set(busy))

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.errors import LabError, UsageError
from yoked.lab import random_faults as module
from yoked.lab.process import until
from yoked.lab.random_faults import RandomFault, draw, random_faults

HOSTS = ("alpha", "beta", "gamma")
KINDS = ("cut", "slow-link HOST 20mbit", "one-way HOST OTHER")


def drawn(seed: int, count: int = 40) -> list[RandomFault]:
    return draw(KINDS, HOSTS, seed=seed, every_s=20, for_s=50, count=count)


@given(seed=st.integers(0, 2**32))
def test_faults_are_decided_by_their_seed_and_break_one_thing_of_a_host_at_a_time(
    seed: int,
) -> None:
    found = drawn(seed)

    assert found == drawn(seed)
    assert len(found) == 40
    free_from_s = dict.fromkeys(HOSTS, 0.0)
    for fault in found:
        struck = [word for word in fault.words if word in HOSTS]
        assert len(struck) == len(set(struck)) == (2 if fault.words[0] == "one-way" else 1)
        for host in struck:
            assert free_from_s[host] <= fault.after_s
            free_from_s[host] = fault.after_s + fault.for_s


def test_seeds_give_faults_that_differ_and_stay_the_same_for_ever() -> None:
    assert drawn(1, 3) != drawn(2, 3)
    assert drawn(1, 3) == [
        RandomFault(("cut", "gamma"), 26.95, 50),
        RandomFault(("cut", "alpha"), 46.86, 50),
        RandomFault(("slow-link", "beta", "20mbit"), 72.63, 50),
    ]


def test_a_fault_between_two_hosts_needs_two() -> None:
    with pytest.raises(UsageError):
        draw(["cut HOST OTHER"], ["alpha"], seed=3, every_s=2, for_s=1, count=1)


class FakeFaults:
    """Faults of a lab that is not there."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.standing: dict[str, str] = {}

    def apply(self, lab: Any, kind: str, args: Sequence[str], *, seed: int) -> Any:
        if kind == "refused":
            raise LabError("it cannot be done here")
        fault_id = f"{kind}-{len(self.done)}"
        self.standing[fault_id] = kind
        self.done.append(f"{kind} {' '.join(args)}")
        return SimpleNamespace(id=fault_id)

    def active(self, lab: Any) -> list[Any]:
        return [SimpleNamespace(id=each) for each in self.standing]

    def heal(self, lab: Any, which: Sequence[str]) -> None:
        (fault_id,) = which
        if self.standing[fault_id] == "stuck":
            raise LabError("it stays")
        self.done.append(f"heal {self.standing.pop(fault_id)}")


class FakeLab:
    name = "fake"

    def refresh(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeFaults:
    found = FakeFaults()
    monkeypatch.setattr(module, "faults", found)
    monkeypatch.setattr(module.Lab, "open", lambda name: FakeLab())
    return found


def lab() -> Any:
    return FakeLab()


def at(moment_s: float, *words: str, for_s: float = 60.0) -> RandomFault:
    return RandomFault(words, moment_s, for_s)


def wait(ready: Callable[[], bool]) -> None:
    assert until(ready, 10, 0.01)


def test_a_fault_comes_and_goes_at_its_moments_and_another_one_is_passed_over(
    fake: FakeFaults,
) -> None:
    faults = [at(0.0, "refused", "alpha"), at(0.0, "cut", "beta", for_s=0.05)]

    with random_faults(lab(), faults) as (refused, cut):
        wait(lambda: cut.healed_s is not None)

    assert fake.done == ["cut beta", "heal cut"]
    assert (refused.began_s, type(refused.trouble)) == (None, LabError)
    assert cut.began_s is not None
    assert cut.healed_s is not None
    assert cut.healed_s - cut.began_s >= 0.04


def test_what_is_active_when_the_test_fails_is_healed_newest_first(fake: FakeFaults) -> None:
    faults = [at(0.0, "cut", "alpha"), at(0.0, "stop", "beta"), at(60.0, "kill", "gamma")]

    def fail_when_two_are_active() -> None:
        with random_faults(lab(), faults) as records:
            wait(lambda: records[1].began_s is not None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_when_two_are_active()

    assert fake.done == ["cut alpha", "stop beta", "heal stop", "heal cut"]


def test_a_fault_that_cannot_be_healed_is_told(fake: FakeFaults) -> None:
    def end_while_it_is_active() -> None:
        with random_faults(lab(), [at(0.0, "stuck", "alpha")]) as (record,):
            wait(lambda: record.began_s is not None)

    with pytest.raises(LabError):
        end_while_it_is_active()

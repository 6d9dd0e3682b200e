"""Faults are written down before they are brought about, so that none is ever lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError, UsageError
from yoked.lab import faults
from yoked.lab.faults import base, kind_named
from yoked.lab.faults.base import FaultContext
from yoked.lab.faults.links import Shape, Unplugged


class Cable:
    """Stands for the cable of a host: what `Unplugged` would do to the switch."""

    def __init__(self) -> None:
        self.is_out = False
        self.problem: BaseException | None = None
        self.healing_fails = False

    def cut(self, act: FaultContext) -> None:
        act.remember(before="was in")
        self.is_out = True
        if self.problem is not None:
            raise self.problem

    def mend(self, act: FaultContext) -> None:
        if self.healing_fails:
            raise LabError("the switch is gone", fix="yoked lab down")
        self.is_out = False


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch) -> Cable:
    cable = Cable()
    monkeypatch.setattr(Unplugged, "apply", lambda _self, _fault, act: cable.cut(act))
    monkeypatch.setattr(Unplugged, "undo", lambda _self, _fault, act: cable.mend(act))
    return cable


def test_a_fault_is_listed_until_it_is_healed(paper_lab: Any, cable: Cable) -> None:
    fault = faults.apply(paper_lab, "cut", ["alpha"])

    assert [each.id for each in faults.active(paper_lab)] == [fault.id]
    assert (fault.state, fault.hosts, fault.record) == ("active", ("alpha",), {"before": "was in"})
    assert faults.heal(paper_lab) == [fault]
    assert faults.active(paper_lab) == []
    assert not cable.is_out


def test_ids_are_not_given_twice(paper_lab: Any, cable: Cable) -> None:
    first = faults.apply(paper_lab, "cut", ["alpha"])
    faults.heal(paper_lab)

    assert faults.apply(paper_lab, "cut", ["alpha"]).id != first.id


@pytest.mark.parametrize("problem", [LabError("no"), OSError("no"), KeyboardInterrupt()])
def test_a_fault_that_fails_half_way_is_undone_and_forgotten(
    paper_lab: Any, cable: Cable, problem: BaseException
) -> None:
    cable.problem = problem

    with pytest.raises(type(problem)):
        faults.apply(paper_lab, "cut", ["alpha"])

    assert not cable.is_out
    assert faults.active(paper_lab) == []


def test_a_fault_whose_maker_died_half_way_can_be_healed(paper_lab: Any, cable: Cable) -> None:
    cable.problem, cable.healing_fails = KeyboardInterrupt(), True
    with pytest.raises(KeyboardInterrupt):
        faults.apply(paper_lab, "cut", ["alpha"])
    (left,) = faults.active(paper_lab)

    cable.healing_fails = False
    faults.heal(paper_lab)

    assert (left.state, left.record) == ("starting", {"before": "was in"})
    assert not cable.is_out
    assert faults.active(paper_lab) == []


def test_healing_goes_on_after_one_that_fails_and_names_it(paper_lab: Any, cable: Cable) -> None:
    faults.apply(paper_lab, "cut", ["alpha"])
    faults.apply(paper_lab, "cut", ["beta"])
    cable.healing_fails = True

    with pytest.raises(LabError) as told:
        faults.heal(paper_lab)

    assert all(f"{name}: the switch is gone" in told.value.what for name in ("f1", "f2"))
    assert told.value.fix == ("yoked lab down",)
    assert len(faults.active(paper_lab)) == 2


def test_faults_are_healed_by_id_by_host_and_newest_first(paper_lab: Any, cable: Cable) -> None:
    one = faults.apply(paper_lab, "cut", ["alpha"])
    two = faults.apply(paper_lab, "cut", ["beta"])
    both = faults.apply(paper_lab, "cut", ["alpha", "beta"])

    assert faults.heal(paper_lab, [two.id]) == [two]
    assert faults.heal(paper_lab, ["alpha"]) == [both, one]
    assert faults.heal(paper_lab, ["alpha"]) == []


def test_what_is_neither_a_fault_nor_a_host_is_refused_before_anything_is_healed(
    paper_lab: Any, cable: Cable, snapshot: SnapshotAssertion
) -> None:
    fault = faults.apply(paper_lab, "cut", ["alpha"])

    with pytest.raises(UsageError) as refused:
        faults.heal(paper_lab, [fault.id, "alhpa"])
    assert str(refused.value) == snapshot

    assert "'alpha'" in refused.value.fix[0]
    assert cable.is_out


def test_the_same_fault_twice_is_refused_with_the_id_of_the_first(
    paper_lab: Any, cable: Cable
) -> None:
    first = faults.apply(paper_lab, "cut", ["alpha"])

    with pytest.raises(LabError) as refused:
        faults.apply(paper_lab, "cut", ["alpha:eth0"])

    assert refused.value.fix == (f"yoked lab heal {first.id}",)


@pytest.mark.parametrize("kind", ["disk-full", "no-inodes"])
def test_a_host_whose_disk_takes_no_files_is_not_written_to(paper_lab: Any, kind: str) -> None:
    full = kind_named(kind).parse(paper_lab, ["alpha"])
    context = FaultContext(paper_lab, "f2", others=(full,))

    with pytest.raises(LabError) as refused:
        context.writable("alpha")

    assert refused.value.fix == ("yoked lab heal alpha",)
    assert context.writable("beta") is paper_lab.host("beta")


def test_a_fault_that_the_machine_cannot_do_is_refused_with_the_reason(
    paper_lab: Any, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine of this test has nft, whatever the one that runs it has.
    monkeypatch.setattr(base, "lacking", lambda _name: None)
    paper_lab.features = replace(paper_lab.features, nft=False)

    with pytest.raises(LabError) as caught:
        faults.apply(paper_lab, "one-way", ["alpha", "beta"])
    assert str(caught.value) == snapshot

    assert faults.active(paper_lab) == []


def test_a_fault_that_cannot_be_brought_about_again_does_not_keep_the_others_from_it(
    paper_lab: Any, cable: Cable, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    slow: list[str] = []
    monkeypatch.setattr(Shape, "apply", lambda _self, fault, _act: slow.append(fault.host))
    faults.apply(paper_lab, "cut", ["alpha"])
    faults.apply(paper_lab, "slow-link", ["alpha", "1mbit"])
    slow.clear()
    cable.problem = LabError("the switch is gone", fix="yoked lab down")

    with pytest.raises(LabError) as told:
        faults.after_start(paper_lab, "alpha")
    assert str(told.value) == snapshot

    assert slow == ["alpha"]
    assert told.value.fix == ("yoked lab down",)

"""Hosts speak to all of their network where a connection met silence, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.doctor.builders import PAIR, broken, home

from yoked.doctor.broadcasts import heard_by
from yoked.doctor.dials import Endpoint
from yoked.errors import HostError
from yoked.records.examination import Dial


class Asked:
    """An agent that notes what it is asked."""

    def __init__(self, *, fails: bool = False) -> None:
        self.args: dict[str, Any] = {}
        self._fails = fails

    def call(self, name: str, *, timeout_s: float, **args: Any) -> Any:
        del timeout_s
        assert name == "broadcast"
        self.args = args
        if self._fails:
            raise HostError("it fell silent")
        return {"sent": True, "heard": [], "card": None}

    def stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError


def ask(
    dials: tuple[Dial, ...], address: str = "10.0.0.{}", kind: str = "physical", prefix: int = 24
) -> tuple[dict[str, Any], dict[str, Asked]]:
    agents = {name: Asked(fails=name == "garage") for name in PAIR}
    own = {name: address.format(number) for number, name in enumerate(PAIR, start=1)}
    endpoints = [Endpoint(name, "eth0:1", own[name], chosen=True) for name in PAIR]
    interfaces = {
        name: [{"name": "eth0:1", "kind": kind,
                "addresses": [{"address": own[name], "prefix": prefix}]}]
        for name in PAIR
    }  # fmt: skip
    return dict(heard_by(endpoints, interfaces, dials, agents)), agents


SILENT = broken(home(PAIR), "attic", "garage").dials


@pytest.mark.parametrize(
    ("address", "prefix", "groups"),
    [
        ("10.0.0.{}", 24, ("10.0.0.255", "10.0.0.255")),
        ("fd00::1:{}", 64, ("ff02::1:ff01:1", "ff02::1:ff01:2")),
    ],
)
def test_each_hears_where_the_question_for_its_card_goes(
    address: str, prefix: int, groups: tuple[str, str]
) -> None:
    found, agents = ask(SILENT, address, prefix=prefix)

    # Who falls silent meanwhile tells nothing.
    assert found == {"attic": {"sent": True, "heard": [], "card": None}}
    assert tuple(each.args["group"] for each in agents.values()) == groups
    assert agents["attic"].args["groups"] == [groups[1]]
    assert agents["attic"].args["interface"] == "eth0"
    assert len({each.args["port"] for each in agents.values()}) == 1


@pytest.mark.parametrize(
    ("dials", "kind", "prefix"),
    [(home(PAIR).dials, "physical", 24), (SILENT, "vpn", 24), (SILENT, "physical", 31)],
    ids=["all-well", "tunnel", "point-to-point"],
)
def test_nobody_speaks_where_all_is_well_or_no_card_is_asked_for(
    dials: tuple[Dial, ...], kind: str, prefix: int
) -> None:
    found, agents = ask(dials, kind=kind, prefix=prefix)

    assert found == {}
    assert not any(each.args for each in agents.values())

"""Faults of cables, seen from the hosts at their ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from yoked.errors import LabError

SOON_S = 0.7
BULK = 3_000_000


def shape(where: Any, device: str) -> dict[str, Any]:
    """The queue of a device, as tc has it."""
    shown = json.loads(where.tool(["tc", "-j", "qdisc", "show", "dev", device]).stdout)
    found: dict[str, Any] = shown[0]
    return found


def test_a_cut_cable_has_no_carrier_and_carries_again_once_healed(acts: Any) -> None:
    before = acts.call("beta", "alpha")

    acts.fault("cut", "alpha")
    cut = (acts.link("alpha"), acts.call("beta", "alpha", patience_s=SOON_S))
    acts.heal("alpha")

    assert before == "passed"
    assert "NO-CARRIER" in cut[0]
    assert cut[1] != "passed"
    assert "NO-CARRIER" not in acts.link("alpha")
    assert acts.call("beta", "alpha") == "passed"


def test_two_hosts_that_are_cut_apart_reach_only_the_third(acts: Any) -> None:
    acts.fault("cut", "alpha", "beta")

    seen = {
        (one, two): acts.call(one, two, patience_s=SOON_S)
        for one, two in (("alpha", "beta"), ("beta", "alpha"), ("alpha", "gamma"))
    }
    carrier = acts.link("alpha")
    acts.heal("beta")

    assert seen[("alpha", "beta")] != "passed"
    assert seen[("beta", "alpha")] != "passed"
    assert seen[("alpha", "gamma")] == "passed"
    assert "LOWER_UP" in carrier
    assert acts.call("alpha", "beta") == "passed"


def test_one_way_lets_packets_through_in_one_direction_only(acts: Any) -> None:
    acts.fault("one-way", "alpha", "beta")

    connected = acts.call("alpha", "beta", patience_s=SOON_S)
    there, back = acts.arrived("alpha", "beta", 5), acts.arrived("beta", "alpha", 5)
    acts.heal()

    assert connected == "timeout"
    assert (there, back) == (0, 5)
    assert acts.call("alpha", "beta") == "passed"


def test_a_slow_link_takes_its_time_both_ways_and_gets_its_rate_back(acts: Any) -> None:
    before = shape(acts.lab.host("alpha"), "eth0")

    acts.fault("slow-link", "alpha", "1mbit")
    small = acts.call("alpha", "beta")
    to_alpha = acts.call("beta", "alpha", count=BULK, patience_s=SOON_S)
    # Behind that, even a connection waits.
    from_alpha = acts.call("alpha", "beta", count=BULK, patience_s=SOON_S)
    acts.heal("alpha")

    assert small == "passed"
    assert to_alpha == "stalled"
    assert from_alpha in ("stalled", "timeout")
    assert shape(acts.lab.host("alpha"), "eth0")["options"] == before["options"]
    assert acts.call("beta", "alpha", count=BULK) == "passed"
    assert acts.call("alpha", "beta", count=BULK) == "passed"


def test_the_rate_of_a_slow_link_is_that_of_both_ends(acts: Any) -> None:
    port = acts.lab.topology.host("alpha").interfaces[0].port

    acts.fault("slow-link", "alpha:eth0", "20", "Mbit/s")

    rates = [
        shape(where, device)["options"]["rate"]
        for where, device in ((acts.lab.host("alpha"), "eth0"), (acts.lab.switch, port))
    ]
    # tc counts bytes.
    assert rates == [20_000_000 / 8] * 2


def test_a_lossy_link_loses_about_what_was_asked(acts: Any) -> None:
    whole = acts.arrived("alpha", "beta", 200)

    acts.fault("lossy", "beta", "50%")
    half = [acts.arrived("alpha", "beta", 200), acts.arrived("beta", "alpha", 200)]
    acts.heal()

    assert whole == 200
    # Seven standard deviations to each side.
    assert all(50 < count < 150 for count in half)
    assert acts.arrived("alpha", "beta", 200) == 200


def test_a_narrow_hop_lets_small_messages_pass_and_large_ones_vanish(acts: Any) -> None:
    acts.fault("mtu", "alpha", "1400")

    small = acts.call("alpha", "beta"), acts.call("beta", "alpha")
    large = [
        acts.call(*way, count=BULK, patience_s=1.0)
        for way in (("alpha", "beta"), ("beta", "alpha"))
    ]
    shown = acts.lab.host("alpha").tool(["ip", "link", "show", "dev", "eth0"]).stdout
    acts.heal("alpha")

    assert small == ("passed", "passed")
    assert large == ["stalled", "stalled"]
    assert " mtu 1500 " in shown
    assert acts.call("alpha", "beta", count=BULK) == "passed"
    assert acts.call("beta", "alpha", count=BULK) == "passed"


def test_lowering_both_ends_heals_a_narrow_hop(acts: Any) -> None:
    acts.fault("mtu", "alpha", "1400")

    for name in ("alpha", "beta"):
        acts.lab.host(name).tool(["ip", "link", "set", "eth0", "mtu", "1400"])
    passed = acts.call("alpha", "beta", count=BULK), acts.call("beta", "alpha", count=BULK)
    for name in ("alpha", "beta"):
        acts.lab.host(name).tool(["ip", "link", "set", "eth0", "mtu", "1500"])

    assert passed == ("passed", "passed")


def test_frames_stay_single_until_the_last_fault_that_needs_it_is_healed(acts: Any) -> None:
    def pieces() -> Any:
        shown = acts.lab.host("gamma").tool(["ip", "-j", "-d", "link", "show", "dev", "eth0"])
        return json.loads(shown.stdout)[0]["gso_max_segs"]

    before = pieces()
    narrow, lossy = acts.fault("mtu", "alpha", "1400"), acts.fault("lossy", "beta", "1")

    acts.heal(narrow.id)
    with_one = pieces()
    acts.heal(lossy.id)

    assert with_one == 1
    assert pieces() == before > 1


def test_a_second_fault_of_a_kind_on_one_cable_is_refused_with_the_way_out(acts: Any) -> None:
    first = acts.fault("slow-link", "alpha", "10mbit")

    with pytest.raises(LabError) as refused:
        acts.fault("slow-link", "alpha:eth0", "20mbit")

    assert refused.value.fix == (f"yoked lab heal {first.id}",)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.documents import file_of

from yoked.costmodel.model_shape import ModelShape, flops_per_token
from yoked.errors import FleetError, UsageError
from yoked.plan.search import PlanRequest, make_plan
from yoked.plan.simulated_fleet import (
    SimulatedFleet,
    SimulatedHost,
    add_hosts,
    load_simulated,
    parse_added,
    presets,
    simulate,
)
from yoked.records.measurement import Measurement
from yoked.units import parse_bit_per_s

Fleet = Callable[..., Measurement]


@pytest.mark.parametrize("name", ["h100-roce", "64-homes", "two-laptops"])
def test_a_built_in_fleet_can_be_planned(name: str, anchor: ModelShape) -> None:
    measurement = simulate(load_simulated(name), anchor, device_batch_size=2)
    plan = make_plan(PlanRequest(anchor, 65_536), measurement)
    assert name in presets()
    assert plan.chosen.tokens_per_second >= 0.99 * plan.best_single_host.tokens_per_second


def test_a_simulated_host_reaches_its_utilisation_of_its_peak(anchor: ModelShape) -> None:
    fleet = load_simulated("two-laptops")
    cost = simulate(fleet, anchor, device_batch_size=2).step_costs[0]
    took_s = cost.forward_s + cost.head_s + cost.backward_s
    assert flops_per_token(anchor) * cost.tokens / took_s == pytest.approx(0.5 * 0.6e12)


def test_a_link_is_as_fast_as_its_slower_end(anchor: ModelShape, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[[host]]\nname = "a"\ntflops = 1\nup = "40 Mbit/s"\ndown = "250 Mbit/s"\n'
        '[[host]]\nname = "b"\ntflops = 1\nup = "100 Mbit/s"\nhalf_duplex = true\n'
    )
    links = simulate(load_simulated(str(file)), anchor, 2).links
    rates = {(link.from_host, link.to_host): link.goodput_bytes_per_s * 8 for link in links}
    assert rates == {("a", "b"): 40e6, ("b", "a"): 50e6}


@pytest.mark.parametrize(
    "text",
    [
        "[[host]]\nname = 3",
        '[[host]]\nname = "a"\ntflops = 0\nup = "1 Gbit/s"',
        '[[host]]\nname = "a"\ntflops = 1\nup = "0 Gbit/s"',
        '[[host]]\nname = "a"\ntflops = 1\nup = "1 Gbit/s"\nspeed = 1',
        '[[host]]\nname = "a"\ntflops = 1\nup = "100"',
        "host = ",
    ],
)
def test_a_wrong_file_is_told_with_its_place(
    tmp_path: Path, text: str, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(FleetError) as caught:
        load_simulated(str(file))
    assert str(caught.value) == snapshot


def test_two_hosts_of_one_name_are_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(2 * '[[host]]\nname = "a"\ntflops = 1\nup = "1 Gbit/s"\n')
    with pytest.raises(FleetError) as caught:
        load_simulated(str(file))
    assert str(caught.value) == snapshot


def test_a_machine_as_fast_as_the_others_helps(fleet: Fleet, anchor: ModelShape) -> None:
    # The anchors' hosts reach 0.09 TFLOP/s.
    more = add_hosts(fleet(), [parse_added("third=0.25,950")], anchor, device_batch_size=2)
    plan = make_plan(PlanRequest(anchor, 16_384), more)
    (gain,) = [gain for gain in plan.host_gains if gain.host == "third"]
    assert plan.excluded == ()
    assert gain.gain > 0.2


def test_a_machine_on_a_slow_line_does_not_help_and_the_plan_says_no(
    fleet: Fleet, anchor: ModelShape
) -> None:
    more = add_hosts(fleet(), [parse_added("far=0.25,2")], anchor, device_batch_size=2)
    plan = make_plan(PlanRequest(anchor, 2048), more)
    assert plan.excluded == ("far",)
    assert next(gain for gain in plan.host_gains if gain.host == "far").gain < 0


@pytest.mark.parametrize(
    "text", ["mini", "mini=1", "=1,1", "mini=0,1", "mini=a,b", "mini=1,-1", "mini=inf,1"]
)
def test_a_host_to_add_is_checked(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        parse_added(text)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(("mbit", "rate"), [("940", 940e6), ("0.00001", 10.0), ("1e30", 1e36)])
def test_a_line_of_any_rate_can_be_added(mbit: str, rate: float) -> None:
    assert parse_bit_per_s(parse_added(f"far=0.25,{mbit}").up) == pytest.approx(rate)


@pytest.mark.parametrize("mbit", ["1e308", "5e-324"])
def test_a_line_of_no_rate_is_refused(mbit: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=TFLOPS,MBIT"):
        parse_added(f"far=0.25,{mbit}")


def test_a_name_that_is_taken_is_refused(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        add_hosts(fleet(), [parse_added("a=1,1")], anchor, device_batch_size=2)
    assert str(caught.value) == snapshot


def test_the_file_in_the_documentation_can_be_simulated(anchor: ModelShape, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(file_of("docs/guides/plan.md", "toml"))
    measurement = simulate(load_simulated(str(file)), anchor, device_batch_size=2)
    assert list(measurement.ranks) == ["desktop", "office-1", "office-2"]


def test_two_hosts_to_add_have_two_names(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    twins = [parse_added("mini=0.3,940"), parse_added("mini=0.3,940")]
    with pytest.raises(UsageError) as caught:
        add_hosts(fleet(), twins, anchor, 2)
    assert str(caught.value) == snapshot


def test_the_cores_of_a_stated_host_share_the_work_of_sending(anchor: ModelShape) -> None:
    host = SimulatedHost(name="box", count=2, tflops=1.0, up="10 Gbit/s")
    rates = [
        make_plan(
            PlanRequest(anchor, 8192, dtype="float32"),
            simulate(SimulatedFleet(host=[host.model_copy(update={"cores": cores})]), anchor, 2),
        ).chosen.tokens_per_second
        for cores in (1, 8)
    ]
    assert rates[1] > 1.02 * rates[0]


@pytest.mark.parametrize("rtt_ms", ["inf", "nan"])
def test_a_round_trip_without_end_is_refused(rtt_ms: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f'rtt_ms = {rtt_ms}\n[[host]]\nname = "a"\ntflops = 1\nup = "1 Gbit/s"\n')

    with pytest.raises(FleetError, match="rtt_ms"):
        load_simulated(str(file))


def test_a_fleet_that_an_editor_of_windows_wrote_is_read(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    text = '[[host]]\r\nname = "a"\r\ntflops = 1\r\nup = "1 Gbit/s"\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())

    assert load_simulated(str(file)).host[0].names == ("a",)


def test_a_fleet_without_end_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("a = " + "[" * 100_000)

    with pytest.raises(FleetError, match="is not TOML"):
        load_simulated(str(file))

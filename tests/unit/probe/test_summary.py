"""What ranks told becomes one measurement of hosts by their names in yoked.toml."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.unit.probe.made_up import compute, link, step_cost, two_hosts

from yoked.probe.summary import beyond_wire, is_complete, summarise
from yoked.records.measurement import Compute, Link, Measurement, StepCost

# A host, and what its rank told.
Rank = tuple[str, dict[str, Any] | None]
TIMED = {"op": "all_reduce", "backend": "gloo", "payload_bytes": 4_000_000, "time_s": 0.04}


GPU = {"vendor": "nvidia", "memory_bytes": 24 << 30}
FACTS: dict[str, dict[str, Any]] = {
    "alpha": {"memory_bytes": 8_000_000_000, "gpus": [GPU] * 3},
    "beta": {"memory_bytes": None, "gpus": []},
}


def told(cost: StepCost, rates: Compute) -> dict[str, Any]:
    """A rank's profile as JSON has it, under the name that the host gives itself."""
    return {
        "host": "raspberrypi",
        "compute": [{**dataclasses.asdict(rates), "host": "raspberrypi"}],
        "step_costs": [{**dataclasses.asdict(cost), "host": "raspberrypi"}],
    }


def summarised(links: list[Link], ranks: list[Rank]) -> Measurement:
    return summarise(
        fleet="home",
        taken_s=1.76e9,
        hosts=["alpha", "beta"],
        facts=FACTS,
        links=links,
        ranks=ranks,
        timed=[TIMED] if ranks else [],
        busy_cores={"beta": 1.5},
    )


def test_hosts_have_the_names_of_the_file_and_the_wire_is_the_slowest_link() -> None:
    links = [link("alpha", "beta", 118e6), link("beta", "alpha", 50e6)]
    ranks = [(name, told(step_cost("x"), compute("x"))) for name in ("alpha", "beta")]

    found = summarised(links, ranks)

    assert [each.host for each in found.compute] == ["alpha", "beta"]
    assert [each.host for each in found.step_costs] == ["alpha", "beta"]
    assert found.ranks == {"alpha": 1, "beta": 1}
    # Two ranks: bus and algorithm bandwidth of an all-reduce are the same, 100 MB/s.
    assert found.collectives[0].fraction_of_wire == 2.0
    assert is_complete(found)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fraction_of_wire": 2.54}, True),
        ({"fraction_of_wire": 1.05}, False),
        ({"fraction_of_wire": 2.54, "payload_bytes": 64_000}, False),
        ({"fraction_of_wire": None}, False),
        ({"fraction_of_wire": 1.8, "backend": "nccl", "ranks": 16}, False),
        ({"fraction_of_wire": 1.8, "backend": "nccl"}, True),
    ],
)
def test_more_than_a_wire_carries_shows_that_the_slowest_link_was_measured_too_slow(
    change: dict[str, Any], told: bool
) -> None:
    whole = two_hosts()
    large = dataclasses.replace(whole.collectives[0], **change)

    beyond = beyond_wire(dataclasses.replace(whole, collectives=(large, *whole.collectives[1:])))

    assert beyond == ((whole.links[1], large) if told else None)


def test_ranks_that_share_a_cpu_are_one_device_and_the_slowest_of_them_is_its_step() -> None:
    fast, slow = step_cost("x"), step_cost("x", scale=1.5)
    ranks = [("alpha", told(cost, compute("x"))) for cost in (fast, slow)]

    found = summarised([], ranks)

    assert found.ranks == {"alpha": 2}
    assert [each.threads for each in found.compute] == [2]
    assert found.compute[0].flops_per_s == 2 * compute("x").flops_per_s
    assert [each.forward_s for each in found.step_costs] == [slow.forward_s]
    assert found.collectives[0].fraction_of_wire is None


def test_ranks_on_gpus_of_their_own_are_devices_of_their_own() -> None:
    gpus = [dataclasses.replace(compute("x"), device=f"cuda:{number}") for number in range(2)]

    found = summarised([], [("alpha", told(step_cost("x"), gpu)) for gpu in gpus])

    assert [each.device for each in found.compute] == ["cuda:0", "cuda:1"]


def test_a_host_without_a_step_or_a_missing_link_is_not_whole() -> None:
    ranks = [(name, told(step_cost("x"), compute("x"))) for name in ("alpha", "beta")]
    both = [link("alpha", "beta"), link("beta", "alpha")]

    assert not is_complete(summarised(both[:1], ranks))
    assert not is_complete(summarised(both, [ranks[0], ("beta", None)]))
    assert not is_complete(summarised(both, []))
    assert is_complete(summarised([], ranks[:1]))


def test_where_gpus_train_their_memory_counts() -> None:
    on_gpu = dataclasses.replace(step_cost("x"), device="cuda")
    ranks = [("alpha", told(on_gpu, compute("x"))) for _ in range(2)]

    assert summarised([], ranks).memory_bytes == {"alpha": 2 * (24 << 30)}


def test_where_a_gpu_of_amd_trains_its_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [{"vendor": "amd", "memory_bytes": 16 << 30}]
    monkeypatch.setitem(FACTS, "alpha", {**FACTS["alpha"], "gpus": gpus})
    on_gpu = dataclasses.replace(step_cost("x"), device="cuda")

    found = summarised([], [("alpha", told(on_gpu, compute("x")))])

    assert found.memory_bytes == {"alpha": 16 << 30}


def test_where_the_cpu_trains_the_machines_memory_counts() -> None:
    ranks = [(name, told(step_cost("x"), compute("x"))) for name in ("alpha", "beta")]

    assert summarised([], ranks).memory_bytes == {"alpha": 8_000_000_000}


@pytest.mark.parametrize(
    "told_otherwise", [{"n_head": 0}, {"n_embd": 250}, {"n_layer": -4}, {"window_pattern": ""}]
)
def test_a_shape_that_no_model_has_is_refused(told_otherwise: dict[str, Any]) -> None:
    profile = told(step_cost("x"), compute("x"))
    profile["step_costs"][0]["model"].update(told_otherwise)

    with pytest.raises(ValueError, match="no model has this shape"):
        summarised([], [("alpha", profile)])


def test_what_a_rank_tells_in_another_form_is_named() -> None:
    profile = told(step_cost("x"), compute("x"))
    profile["step_costs"][0]["tokens"] = "1024"

    with pytest.raises(ValueError, match=r"step_costs\.tokens is '1024', not a whole number"):
        summarised([], [("alpha", profile)])

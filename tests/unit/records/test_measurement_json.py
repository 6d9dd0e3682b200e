"""A measurement survives its way through JSON, and what does not fit is named."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.probe.made_up import SHAPE, two_hosts

from yoked.errors import YokedError
from yoked.records.measurement_json import measurement_from_json, measurement_to_json

NUMBERS = st.floats(-(2.0**64), 2.0**64)


@given(name=st.text(), taken_s=NUMBERS, rate=NUMBERS, part=st.none() | NUMBERS)
@settings(max_examples=30)
def test_there_and_back_is_the_same(
    name: str, taken_s: float, rate: float, part: float | None
) -> None:
    made = two_hosts()
    link = dataclasses.replace(made.links[0], goodput_bytes_per_s=rate)
    collective = dataclasses.replace(made.collectives[0], fraction_of_wire=part)
    made = dataclasses.replace(
        made, fleet=name, taken_s=taken_s, links=(link,), collectives=(collective,), ranks={name: 2}
    )

    assert measurement_from_json(measurement_to_json(made)) == made


def test_keys_of_later_versions_of_the_same_layout_are_passed_over() -> None:
    content = json.loads(measurement_to_json(two_hosts()))
    content["weather"] = "rain"

    assert measurement_from_json(json.dumps(content)) == two_hosts()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["links", 0, "rtt_s"], "fast", "links[0].rtt_s is 'fast', not a number"),
        (["links", 0, "rtt_s"], 10**400, f"links[0].rtt_s is 1{59 * '0'}, not a number"),
        (["ranks"], [1, 1], "ranks is [1, 1], not an object"),
        (["collectives", 1, "op"], None, "collectives[1].op is None, not a text"),
        (["compute"], {}, "compute is {}, not a list"),
        (["step_costs", 0, "tokens"], 1.5, "step_costs[0].tokens is 1.5, not a whole number"),
        (["ranks", "alpha"], True, "ranks.alpha is True, not a whole number"),
        (["ranks", "alpha"], 0, "ranks.alpha is 0, not at least 1"),
        (["ranks", "alpha"], 2**40, "ranks.alpha is 1099511627776, not at most 10000"),
        (["step_costs", 0, "tokens"], 0, "step_costs[0].tokens is 0, not at least 1"),
        (["step_costs", 0, "threads"], -1, "step_costs[0].threads is -1, not at least 1"),
        (["compute", 1, "threads"], 0, "compute[1].threads is 0, not at least 1"),
        (["compute", 0, "flops_per_s"], 0, "compute[0].flops_per_s is 0, not above 0"),
        (
            ["compute", 0, "copy_bytes_per_s"],
            -1.0,
            "compute[0].copy_bytes_per_s is -1.0, not above 0",
        ),
        (
            ["step_costs", 0, "model", "n_head"],
            0,
            f"no model has this shape: {dataclasses.replace(SHAPE, n_head=0)}",
        ),
    ],
)
def test_a_field_of_another_kind_is_named(path: list[Any], value: Any, said: str) -> None:
    content = json.loads(measurement_to_json(two_hosts()))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    with pytest.raises(YokedError) as caught:
        measurement_from_json(json.dumps(content), where="home.json")

    assert caught.value.what == f"home.json is damaged: {said}"
    assert "yoked probe" in caught.value.fix[0]


def test_a_missing_field_is_named(snapshot: SnapshotAssertion) -> None:
    content = json.loads(measurement_to_json(two_hosts()))
    del content["step_costs"][1]["muon_s"]

    with pytest.raises(YokedError) as caught:
        measurement_from_json(json.dumps(content))
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}'])
def test_another_version_or_another_file_is_refused(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(YokedError) as caught:
        measurement_from_json(text)
    assert str(caught.value) == snapshot


def test_a_text_without_end_is_no_json() -> None:
    with pytest.raises(YokedError, match="the measurement is not JSON"):
        measurement_from_json("[" * 100_000)

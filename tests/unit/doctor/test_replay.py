"""An examination survives JSON, and what is no examination is refused with its place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.builders import NAMES, broken, home, unreached

from yoked.doctor.causes import findings_of
from yoked.doctor.replay import from_json, to_json
from yoked.errors import YokedError
from yoked.records.examination import Examination, Need


def through_json(seen: Examination) -> Examination:
    return from_json(json.loads(json.dumps(to_json(seen))))


def full() -> Examination:
    seen = home(("attic", "garage"))
    refused = unreached("study", "refused", "Connection refused")
    need = Need(versions={"torch": "2.13.0"}, checkpoint_bytes=1, data={"a": "b"})
    return replace(seen, hosts=(*seen.hosts, refused), need=need, quick=True)


def test_what_comes_back_is_what_went_in() -> None:
    assert through_json(full()) == full()
    assert through_json(Examination(())) == Examination(())


@given(st.sets(st.sampled_from([(a, b) for a in NAMES for b in NAMES if a != b])))
@settings(max_examples=12)
def test_findings_are_the_same_of_what_was_saved(links: set[tuple[str, str]]) -> None:
    seen = home()
    for source, target in links:
        seen = broken(seen, source, target)

    assert findings_of(through_json(seen)) == findings_of(seen)


def test_fields_of_a_later_version_are_passed_over_and_earlier_ones_have_defaults() -> None:
    content = to_json(full())
    content["mood"] = "sunny"
    del content["took_s"], content["dials"][0]["goodput_bytes_per_s"]

    seen = from_json(json.loads(json.dumps(content)))

    assert seen == replace(full(), took_s=0.0)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("version",), 99, "has version 99"),
        (("hosts",), "attic", "hosts is 'attic', not a list"),
        (("hosts", 0, "name"), 5, "hosts[0].name is 5, not a text"),
        (("hosts", 2, "failure", "kind"), "tired", "hosts[2].failure.kind is 'tired', not one of"),
        (("dials", 0, "port"), 1.5, "dials[0].port is 1.5, not a whole number"),
        (("dials", 0, "ok"), 1, "dials[0].ok is 1, not true or false"),
        (("dials", 0, "took_s"), "soon", "dials[0].took_s is 'soon', not a number"),
        (("dials", 0), {}, "missing"),
        (("need", "data"), [1], "need.data is [1], not an object"),
    ],
)
def test_damage_is_told_with_its_place(path: tuple[Any, ...], value: Any, words: str) -> None:
    content = to_json(full())
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    with pytest.raises(YokedError) as caught:
        from_json(content, where="seen.json")

    assert "seen.json" in caught.value.what
    assert words in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("content", [None, [], "text", 5, {}])
def test_what_is_no_examination_is_refused(content: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(YokedError) as caught:
        from_json(content)
    assert str(caught.value) == snapshot

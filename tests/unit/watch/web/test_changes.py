from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.watch.web.moving import Moving

from yoked.watch.view import RankNow
from yoked.watch.web.changes import as_data, changes, sendable

SIZE_BYTES = 5000
SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=20,
)


def applied(value: Any, change: Any) -> Any:
    """As page/state.js does it."""
    if change is None:
        return value
    if isinstance(change, list):
        if len(change) == 1:
            return change[0]
        skip, keep, added = change
        return value[skip : skip + keep] + added
    if isinstance(value, list):
        return [
            applied(each, change.get(str(place))) if str(place) in change else each
            for place, each in enumerate(value)
        ]
    kept = {name: each for name, each in value.items() if change.get(name) != []}
    return kept | {
        name: applied(value.get(name), each) for name, each in change.items() if each != []
    }


@given(old=JSON, new=JSON)
def test_a_change_makes_the_old_state_the_new_one(old: Any, new: Any) -> None:
    before = copy.deepcopy(old)

    found = applied(old, json.loads(json.dumps(changes(old, new))))

    assert found == new
    assert old == before


@given(old=st.lists(st.integers(0, 2), max_size=12), shift=st.integers(0, 5), more=JSON)
def test_a_column_that_slides_is_not_sent_again(old: list[int], shift: int, more: Any) -> None:
    new = [*old[shift:], more]

    assert applied(old, changes(old, new)) == new


def test_steps_that_slide_out_of_the_window_cost_what_came() -> None:
    old = [float(step) for step in range(500)]

    assert changes(old, [*old[3:], 500.0, 501.0, 502.0]) == [3, 497, [500.0, 501.0, 502.0]]
    assert changes([0.0] * 500, [0.0] * 500) is None
    assert changes([0.0] * 500, [*[0.0] * 500, 1.0]) == [0, 500, [1.0]]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_usual_update_of_a_long_run_is_small(ranks: int) -> None:
    watched = Moving(ranks, 2401, each_look=2)
    first, second = (as_data(watched.look()) for _ in range(2))

    size = len(json.dumps(sendable(changes(first, second)), separators=(",", ":")))

    assert len(first["figures"]["curve"]["step"]) > 500
    assert size < SIZE_BYTES, size


def test_a_view_that_is_kept_is_changed_by_nobody() -> None:
    column, names = [1.0, None], [{"name": "a"}]
    kept = as_data({"column": column, "names": names, "memory": RankNow(0, "alpha")})

    column.append(2.0)
    names[0]["name"] = "b"

    assert (kept["column"], kept["names"]) == ([1.0, None], [{"name": "a"}])
    assert kept["memory"]["host"] == "alpha"


def test_figures_are_rounded_to_what_is_shown_and_times_of_a_clock_are_not() -> None:
    found = sendable({"loss": 2.123456789, "time_s": 1_795_820_532.51234, "n": 12_345_678, "x": ()})

    assert found == {"loss": 2.12346, "time_s": 1_795_820_532.512, "n": 12_345_678, "x": []}
    assert sendable([math.nan, math.inf, "a\x1b[2J\u202e"]) == ["nan", "inf", "a\\x1b[2J\\u202e"]

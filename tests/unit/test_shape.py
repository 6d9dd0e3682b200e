"""Foreign JSON is taken in the form that it must have, or refused with the place."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.shape import require


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (True, int),
        (1.5, int),
        (2**70, int),
        (True, float),
        ("1", (int, None)),
        ([1], {"a": int}),
        ({"a": "1"}, {"a": int}),
        ({}, {"a": int}),
        ({"a": [1, "b"]}, {"a": [int]}),
        ({"a": 1, "b": "c"}, {str: int}),
    ],
)
def test_what_has_another_shape_is_refused(value: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^it"):
        require(value, shape)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (1, float),
        (float("nan"), float),
        (None, (int, None)),
        ({"a": 1, "more": "words"}, {"a": int}),
        ({}, {"a?": int}),
        ({"a": 1, "b": 2}, {str: int}),
    ],
)
def test_what_has_the_shape_is_taken(value: Any, shape: Any) -> None:
    require(value, shape)

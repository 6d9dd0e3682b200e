"""What ranks tell each other arrives as it was, and what is no such word is refused."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.errors import PeerError
from yoked.ranks.exchange import (
    Read,
    decode,
    encode,
    read_flag,
    read_list,
    read_nothing,
    read_number,
    read_table,
    read_table_of,
    read_text,
    read_whole,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
READERS: list[Read[Any]] = [
    read_nothing,
    read_flag,
    read_text,
    read_whole,
    read_number,
    read_table,
    read_list(read_text),
    read_table_of(read_number),
]


def as_it_is(value: Any) -> Any:
    return value


@given(PLAIN)
def test_plain_values_arrive_to_the_bit(value: object) -> None:
    arrived = decode(encode(value), 1, as_it_is)

    assert arrived == value
    assert repr(arrived) == repr(value)


def test_numbers_that_are_none_arrive_too() -> None:
    arrived = decode(encode([math.nan, math.inf, -math.inf]), 1, read_list(read_number))

    assert math.isnan(arrived[0])
    assert arrived[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, b"bytes", object(), [("a",)], {"a": {2}}])
def test_what_would_arrive_as_something_else_is_a_bug(value: object) -> None:
    with pytest.raises(AssertionError):
        encode(value)


@given(st.binary(max_size=200) | PLAIN.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_what_was_asked_for_or_an_error_that_names_the_rank(words: bytes) -> None:
    for read in READERS:
        problem: PeerError | None = None
        try:
            decode(words, 3, read)
        except PeerError as met:
            problem = met
        assert problem is None or problem.what.startswith("rank 3 ")


@pytest.mark.parametrize(
    "words",
    [
        pickle.dumps({"a": 1}),
        b"",
        b"[" * 100_000,
        b"1" + b"0" * 5_000,
        b"\xff",
    ],
)
def test_what_is_no_json_is_refused(words: bytes, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(PeerError) as caught:
        decode(words, 1, as_it_is)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (read_nothing, 0),
        (read_flag, 1),
        (read_text, 1),
        (read_whole, True),
        (read_whole, 1.0),
        (read_number, False),
        (read_number, "1"),
        (read_number, 10**400),
        (read_table, []),
        (read_list(read_whole), [1, "2"]),
        (read_list(read_whole), "12"),
        (read_table_of(read_number), {"a": None}),
    ],
)
def test_a_value_of_another_kind_is_refused(read: Read[Any], value: object) -> None:
    with pytest.raises(PeerError):
        decode(encode(value), 1, read)


def test_a_message_quotes_no_more_than_a_little_of_what_arrived() -> None:
    with pytest.raises(PeerError) as refused:
        decode(encode("\x1b[2J" + "x" * 10_000), 1, read_flag)

    assert len(refused.value.what) < 300
    assert "\x1b" not in refused.value.what

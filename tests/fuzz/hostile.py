"""Bytes and values that no program of ours writes, near to and far from those that it does."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

# Where decoders have gone wrong elsewhere.
ODD = st.sampled_from(
    [
        None,
        True,
        False,
        -1,
        0,
        1,
        2**31,
        2**63,
        2**64,
        10**30,
        10**400,
        1e-300,
        1e308,
        float("nan"),
        float("inf"),
        -float("inf"),
        "",
        "a",
        "-",
        "~nobody/x",
        "../../x",
        "/etc/passwd",
        "a\0b",
        "a\nb; touch x",
        "$(touch x)",
        "\ud800",
        "\x1b]0;x\x07\u202e",
        "x" * 5000,
        [],
        {},
        [[]],
        [None] * 300,
        {"": None},
    ]
    # Each is spoilt further in its own place.
).map(copy.deepcopy)
JSON = st.recursive(
    ODD | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
DEEP = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"[" * 900 + b"]" * 900])


@st.composite
def near(draw: st.DrawFn, valid: Any) -> Any:
    """A value that is valid but for some places in it."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        value = _spoil(draw, value)
    return value


def _spoil(draw: st.DrawFn, value: Any) -> Any:
    places = list(_places(value))
    if not places:
        return draw(JSON)
    inner, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if how == "replace":
        inner[key] = draw(ODD | JSON)
    elif how == "remove":
        del inner[key]
    elif isinstance(inner, list):
        inner.insert(key, draw(ODD))
    else:
        inner[draw(st.text(max_size=8))] = draw(ODD)
    return value


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


@st.composite
def near_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes that are valid but for some places in them."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        how = draw(st.sampled_from(["set", "set", "cut", "end", "insert", "repeat"]))
        length = draw(st.integers(1, 64))
        if how == "set":
            content[place : place + 1] = bytes([draw(st.integers(0, 255))])
        elif how == "cut":
            del content[place : place + length]
        elif how == "end":
            del content[place:]
        elif how == "insert":
            content[place:place] = draw(st.binary(max_size=16))
        else:
            content[place:place] = content[place : place + length]
    return bytes(content)


def json_files(valid: Any) -> st.SearchStrategy[bytes]:
    """What may lie where a file with this JSON should."""
    text = json.dumps(valid).encode()
    values = (JSON | near(valid)).map(lambda value: json.dumps(value).encode())
    return st.one_of(values, values, near_bytes(text), st.binary(max_size=200), DEEP)

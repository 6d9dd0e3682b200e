"""Frames: any bytes decode, or are refused by the one error."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.channel.frames import (
    BYTES,
    BYTES_LIMIT_BYTES,
    WORD,
    WORD_LIMIT_BYTES,
    Frame,
    FrameError,
    decode_word,
    encode_bytes,
    encode_word,
    read_frame,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


def read_all(content: bytes) -> list[Frame]:
    async def read() -> list[Frame]:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        frames = []
        while (frame := await read_frame(reader)) is not None:
            frames.append(frame)
        return frames

    return asyncio.run(read())


@given(st.dictionaries(st.text(), JSON), st.binary(), st.integers(0, 2**32 - 1))
def test_what_was_encoded_is_read_again(word: dict[str, Any], payload: bytes, stream: int) -> None:
    first, second = read_all(encode_word(word) + encode_bytes(stream, payload))

    assert decode_word(first.payload) == word
    assert second == Frame(BYTES, stream, payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(content: bytes) -> None:
    try:
        frames = read_all(content)
    except FrameError:
        return
    assert sum(9 + len(frame.payload) for frame in frames) == len(content)


@given(st.binary(max_size=200))
def test_any_payload_is_an_object_or_refused(payload: bytes) -> None:
    try:
        assert isinstance(decode_word(payload), dict)
    except FrameError:
        return


@pytest.mark.parametrize(
    ("kind", "stream", "length"),
    [
        (WORD, 0, WORD_LIMIT_BYTES + 1),
        (BYTES, 1, BYTES_LIMIT_BYTES + 1),
        (BYTES, 1, 2**32 - 1),
        (WORD, 1, 2),
        (0, 0, 0),
        (3, 0, 0),
    ],
)
def test_a_frame_beyond_the_limits_is_refused_before_its_payload_comes(
    kind: int, stream: int, length: int, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(FrameError) as caught:
        read_all(struct.pack(">BII", kind, stream, length))
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"a": NaN}', b"\xff", b'"text"', b"[]", b""])
def test_a_word_that_is_no_json_object_is_refused(
    payload: bytes, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(FrameError) as caught:
        decode_word(payload)
    assert str(caught.value) == snapshot


def test_a_word_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="above"):
        encode_word({"x": "y" * WORD_LIMIT_BYTES})
    assert json.loads(encode_word({"x": 1})[9:]) == {"x": 1}

"""Messages cross a stream whole, or are refused."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.agent.protocol import ProtocolError, read_message, write_message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), JSON), st.binary()), max_size=4))
def test_messages_are_read_as_they_were_written(messages: list[tuple[dict, bytes]]) -> None:
    stream = io.BytesIO()
    for message, data in messages:
        write_message(stream, message, data)
    stream.seek(0)

    for message, data in messages:
        assert read_message(stream) == ({**message, "size": len(data)}, data)
    assert read_message(stream) is None


@pytest.mark.parametrize(
    "raw", [b"Welcome to Debian\n", b"[1]\n", b'{"id": 1}\n', b'{"size": 5}\nabc']
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_message(io.BytesIO(raw))

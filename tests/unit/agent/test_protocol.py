"""Messages cross a stream whole, or are refused."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.agent import protocol
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
    "raw",
    [
        b"Welcome to Debian\n",
        b"[1]\n",
        b"null\n",
        b'"size"\n',
        b'{"id": 1}\n',
        b'{"size": 5}\nabc',
        b'{"size": 0}',
        b'{"size": -1}\nabc',
        b'{"size": 1e400}\nabc',
        b'{"size": NaN}\nabc',
        b'{"size": true}\na',
        b'{"size": "1"}\na',
        b'{"size": 70000000}\nabc',
        b'{"size": ' + b"1" * 5000 + b"}\nabc",
        b'{"size": 0, "id": "1"}\n',
        b'{"size": 0, "id": true}\n',
        b'{"size": 0, "id": 1e3}\n',
        b'{"size": 0, "id": 99999999999999999999}\n',
        b'{"size": 0, "a": ' + b"[" * 50 + b"]" * 50 + b"}\n",
        b'{"size": 0, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b"[" * 100_000 + b"\n",
        b"\xff\n",
        b'{"\0s\0i\0z\0e\0"\0:\0000\0}\0\n',
    ],
    ids=lambda raw: raw[:40].decode(errors="replace"),
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_message(io.BytesIO(raw))


def test_a_line_without_an_end_is_refused_once_it_is_longer_than_any(
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE_BYTES", 12)

    with pytest.raises(ProtocolError) as caught:
        read_message(io.BytesIO(b'{"size":0}         \n'))
    assert str(caught.value) == snapshot


@settings(max_examples=100)
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode() + b"\n"))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    stream = io.BytesIO(raw)

    with contextlib.suppress(ProtocolError):
        while (found := read_message(stream)) is not None:
            message, data = found
            assert len(data) == message["size"]

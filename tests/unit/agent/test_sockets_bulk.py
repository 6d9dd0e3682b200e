"""Bulk tells a way that lets nothing large through from a slow one; ports that stay the same."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall
from tests.unit.agent.test_sockets import DEADLINE_S, TOKEN, listening

from yoked.agent.sockets import answer_dial

BULK_BYTES = 262_144


def dial(port: int, **more: Any) -> dict[str, Any]:
    args = {"wait_s": 2.0, "send_s": 2.0, "send_bytes": BULK_BYTES, **more}
    targets = [{"address": "127.0.0.1", "port": port}]
    return answer_dial(FakeCall(token=TOKEN, host="alpha", targets=targets, **args))[0]


@contextmanager
def deaf_host() -> Iterator[int]:
    """Answers like a host, and then reads nothing: as if nothing large came through to it."""
    with socket.socket() as server:
        # The least that the kernel grants, before it accepts: connections take it over.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        guests: list[socket.socket] = []

        def greet() -> None:
            guest = server.accept()[0]
            guests.append(guest)
            guest.recv(1000)
            guest.sendall(json.dumps({"host": "beta"}).encode() + b"\n")

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(DEADLINE_S)
            for guest in guests:
                guest.close()


def test_all_that_was_sent_is_said_to_have_come() -> None:
    with listening() as listener:
        answer = dial(listener.port)

    assert (answer["ok"], answer["arrived_bytes"]) == (True, BULK_BYTES)
    assert answer["source_address"] == "127.0.0.1"
    assert answer["connected"]
    assert answer["took_s"] < DEADLINE_S


def test_what_does_not_come_through_is_told_by_what_was_confirmed() -> None:
    with deaf_host() as port:
        answer = dial(port, patience_s=0.3)

    assert (answer["ok"], answer["connected"], answer["answered_by"]) == (False, True, "beta")
    assert answer["error"] == "ETIMEDOUT"
    assert answer["arrived_bytes"] < BULK_BYTES


def test_a_refusal_has_the_source_of_the_way() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        answer = dial(taken.getsockname()[1])

    assert (answer["error"], answer["connected"]) == ("ECONNREFUSED", False)
    assert answer["source_address"] == "127.0.0.1"
    assert answer["arrived_bytes"] == 0


def test_it_listens_at_more_ports_and_says_which_are_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]

        with listening(more=[0, taken]) as listener:
            second, none = listener.call.parts[0]["more"]
            answers = [dial(listener.port), dial(second)]

    assert none is None
    assert [answer["answered_by"] for answer in answers] == ["beta", "beta"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", second), DEADLINE_S)

"""What is said to all of a network is heard by whoever listens for that alone."""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent.broadcasts import answer_broadcast

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lo broadcasts on Linux")
ALL = "127.255.255.255"


def told(host: str, port: int, **more: Any) -> dict[str, Any]:
    usual = {"token": "t", "host": host, "interface": "lo", "address": "127.0.0.1", "group": ALL,
             "groups": [ALL], "port": port, "wait_s": 0.6}  # fmt: skip
    return answer_broadcast(FakeCall(**{**usual, **more}))


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_words_to_all_are_heard_and_ones_own_and_strangers_are_left_out() -> None:
    port = free_port()
    found: dict[str, Any] = {}
    listen = {"groups": [], "wait_s": 2.0}
    listens = threading.Thread(target=lambda: found.update(told("attic", port, **listen)))
    listens.start()
    spoken: dict[str, Any] = {}
    # On a busy machine it may begin late.
    while listens.is_alive():
        spoken = told("garage", port, group="127.0.0.9", wait_s=0.5)
        told("study", port, group="127.0.0.9", token="u", wait_s=0.5)
    listens.join()

    assert spoken["sent"] is True
    assert found["sent"] is False
    assert found["heard"] == ["garage"]


def test_who_cannot_listen_says_that_it_is_not_known() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((ALL, 0))
        port = other.getsockname()[1]
        found = told("attic", port, interface="none0", wait_s=0.1)

    assert (found["heard"], found["card"]) == (None, None)

"""A host dials itself: at each address by itself, and no longer than a moment."""

from __future__ import annotations

import errno
import socket

import pytest

from yoked.agent import loopback
from yoked.agent.loopback import dial_itself, probe_loopback


def test_an_ordinary_host_reaches_itself() -> None:
    assert probe_loopback()["127.0.0.1"] is None


def test_an_address_that_it_does_not_have_is_told() -> None:
    assert dial_itself(["127.0.0.1", "192.0.2.77"]) == {
        "127.0.0.1": None,
        "192.0.2.77": "EADDRNOTAVAIL",
    }


class Mute(socket.socket):
    """Says that it connects, and never does."""

    def connect_ex(self, address: object) -> int:
        return errno.EINPROGRESS


class Refused(socket.socket):
    def connect_ex(self, address: object) -> int:
        return errno.ECONNREFUSED


class Portless(socket.socket):
    def connect_ex(self, address: object) -> int:
        return errno.EADDRNOTAVAIL


@pytest.mark.parametrize(
    ("kind", "told"), [(Refused, "ECONNREFUSED"), (Portless, None)], ids=["refused", "no port left"]
)
def test_a_refusal_is_told_and_a_lack_of_ports_is_none(
    kind: type[socket.socket], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback.socket, "socket", kind)

    assert dial_itself(["127.0.0.1"]) == {"127.0.0.1": told}


def test_silence_ends_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        """A selector that sees nothing happen."""

        def __init__(self) -> None:
            self.held: dict[object, object] = {}

        def __enter__(self) -> Nothing:
            return self

        def __exit__(self, *args: object) -> None:
            self.held.clear()

        def register(self, what: object, *args: object) -> None:
            self.held[what] = args

        def get_map(self) -> dict[object, object]:
            return self.held

        def select(self, timeout_s: float) -> list[object]:
            return []

    monkeypatch.setattr(loopback.selectors, "DefaultSelector", Nothing)
    monkeypatch.setattr(loopback.socket, "socket", Mute)

    assert dial_itself(["127.0.0.1"], wait_s=0.0) == {"127.0.0.1": "ETIMEDOUT"}

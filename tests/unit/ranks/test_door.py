"""Where a rank listens is found by what Gloo tells of it, and nobody is let in there any more."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from yoked.ranks import door

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such filters")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as opened:
        try:
            opened.bind((request.param, 0))
        except OSError:
            pytest.skip("no such address here")
        opened.listen()
        yield opened


def reach(listener: socket.socket) -> bool:
    with socket.socket(listener.family) as line:
        line.settimeout(0.3)
        try:
            line.connect(listener.getsockname())
        except TimeoutError:
            return False
        return True


def test_who_has_come_before_stays_and_nobody_comes_after(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = listener.getsockname()[:2]
    with socket.create_connection((host, port)) as early:
        inside, _ = listener.accept()
        told = door._as_gloo_tells(listener.getsockname())
        monkeypatch.setattr(door, "_told_by_gloo", lambda group: b"before" + told + b"after")

        door.shut_the_door()

        assert not reach(listener)
        early.sendall(b"still here")
        assert inside.recv(64) == b"still here"
        inside.close()


def test_another_part_of_the_program_listens_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_told_by_gloo", lambda group: b"of another port")

    door.shut_the_door()

    assert reach(listener)


def test_an_address_is_as_the_kernel_has_it() -> None:
    assert door._as_gloo_tells(("127.0.0.1", 258)) == struct.pack("=H", 2) + b"\1\2\x7f\0\0\1"
    assert len(door._as_gloo_tells(("::1", 1, 0, 0))) == 2 + 2 + 4 + 16

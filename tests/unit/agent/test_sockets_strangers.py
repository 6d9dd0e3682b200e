"""What strangers at a listener's port can do: nothing that keeps those out who know its token."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import ExitStack

import pytest
from tests.unit.agent.test_sockets import DEADLINE_S, TOKEN, dial, listening

from yoked.agent import listening as module
from yoked.agent.listeners import rows, socket_inodes
from yoked.core.proc import ProcessId

EVERYWHERE = ("00000000", "0" * 32)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's table of sockets is Linux's")
def test_a_listener_is_on_each_address_and_never_on_all() -> None:
    own = ProcessId.of(os.getpid())
    with listening(more=[0]) as listener:
        held = socket_inodes(own.pid)
        places = {
            tuple(row.place.split(":")) for row in rows() if row.listens and row.inode in held
        }
        answers = dial(*((address, listener.port) for address in module.own_addresses()))

    ports = {int(port, 16) for _, port in places}
    assert [place for place in places if place[0] in EVERYWHERE] == []
    assert listener.port in ports
    assert all(answer["ok"] for answer in answers)
    assert len(answers) >= 1


def test_a_port_that_one_address_has_taken_is_taken() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        listening(more=[other.getsockname()[1]]) as listener,
    ):
        told = listener.call.parts[0]

    assert told["more"] == [None]


def test_a_port_is_sought_again_while_another_address_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    bind = module.bound

    def taken_twice(address: str, port: int) -> socket.socket:
        if port and len(tries) < 2:
            tries.append(port)
            raise OSError(98, "Address already in use")
        return bind(address, port)

    monkeypatch.setattr(module, "own_addresses", lambda: ["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(module, "bound", taken_twice)

    with listening() as listener:
        answers = dial(("127.0.0.1", listener.port), ("127.0.0.2", listener.port))

    assert len(tries) == 2
    assert [answer["ok"] for answer in answers] == [True, True]


def test_strangers_who_hold_their_connections_open_keep_nobody_out() -> None:
    with ExitStack() as stack, listening() as listener:
        for _ in range(3 * module.MOST_AT_ONCE):
            guest = socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S)
            stack.enter_context(guest)
            # One that begins as it should, and never ends its line.
            guest.sendall(b'{"token": "')
        answer = dial(("127.0.0.1", listener.port))[0]

    assert answer["ok"]
    assert listener.came == ["alpha"]


def test_a_stranger_who_sends_a_byte_now_and_then_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("yoked.agent.sockets._PATIENCE_S", 0.5)
    with (
        listening() as listener,
        socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S) as guest,
    ):
        until_s = time.monotonic() + DEADLINE_S
        try:
            while time.monotonic() < until_s:
                guest.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass
        left_s = until_s - time.monotonic()

    assert left_s > 0


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[]\n",
        b"{}\n",
        b"x" * 5000,
        b"[" * 900 + b"\n",
        b'{"token": ' + b"9" * 900 + b"}\n",
        b'{"token": null, "from": "x"}\n',
        '{"token": "é", "from": "x"}\n'.encode(),
        b'{"token": ["' + TOKEN.encode() + b'"], "from": "x"}\n',
        b"\xff\xfe\n",
        b"x" * 100_000,
    ],
)
def test_garbage_gets_no_word_and_harms_nobody(words: bytes) -> None:
    with listening() as listener:
        with socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S) as stranger:
            try:
                stranger.sendall(words)
                said = stranger.recv(100)
            except OSError:
                said = b""
        answer = dial(("127.0.0.1", listener.port))[0]

    assert said == b""
    assert answer["ok"]

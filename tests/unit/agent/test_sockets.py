"""A listener answers whoever knows its token, and is gone with its call."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import sockets
from yoked.agent.sockets import answer_dial, answer_listen
from yoked.errors import HostError

TOKEN = "31415926"
DEADLINE_S = 10.0


@dataclass
class Listening:
    """A listener that runs. came: filled in when it has ended."""

    port: int
    call: FakeCall
    thread: threading.Thread
    came: list[str] = field(default_factory=list)

    def end(self) -> None:
        self.call.cancelled.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@contextmanager
def listening(**args: Any) -> Iterator[Listening]:
    call = FakeCall(token=TOKEN, host="beta", **args)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.extend(answer_listen(call)["came"]))
    thread.start()
    assert call.sent.wait(DEADLINE_S)
    found = Listening(call.parts[0]["port"], call, thread, answers)
    try:
        yield found
    finally:
        found.end()


def dial(
    *targets: tuple[str, int], token: str = TOKEN, send_s: float = 0.0
) -> list[dict[str, Any]]:
    return answer_dial(
        FakeCall(
            token=token,
            host="alpha",
            targets=[{"address": address, "port": port} for address, port in targets],
            wait_s=1.0,
            send_s=send_s,
            send_bytes=2_000_000,
        )
    )


def test_who_answers_says_who_it_is_and_who_came() -> None:
    with listening() as listener:
        answer = dial(("127.0.0.1", listener.port))[0]

    assert answer["ok"]
    assert answer["answered_by"] == "beta"
    assert answer["rtt_s"] > 0
    assert answer["goodput_bytes_per_s"] is None
    assert listener.came == ["alpha"]


def test_a_kernel_without_a_free_port_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(port: int = 0) -> list[socket.socket]:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(sockets, "open_listeners", taken)

    with pytest.raises(HostError, match="no port to listen at: Address already in use"):
        answer_listen(FakeCall(token="x", host="beta"))


def test_it_listens_on_both_families() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    with listening() as listener:
        answers = dial(("127.0.0.1", listener.port), ("::1", listener.port))

    assert [answer["answered_by"] for answer in answers] == ["beta", "beta"]


def test_goodput_is_that_of_what_came() -> None:
    with listening() as listener:
        answer = dial(("127.0.0.1", listener.port), send_s=0.1)[0]

    assert answer["ok"]
    assert answer["goodput_bytes_per_s"] > 0


def test_what_came_before_the_window_does_not_count() -> None:
    hello = {"token": TOKEN, "from": "alpha", "skip_s": 0.3, "count_s": 60.0}
    with (
        listening() as listener,
        socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S) as guest,
    ):
        stream = guest.makefile("rwb")
        stream.write(json.dumps(hello).encode() + b"\n")
        stream.flush()
        stream.readline()
        # What a shaped link's full bucket lets through at once.
        guest.sendall(bytes(3_000_000))
        time.sleep(0.4)
        guest.sendall(bytes(700))
        guest.shutdown(socket.SHUT_WR)
        told = json.loads(stream.readline())

    assert told["bytes"] <= 700


def test_echoes_and_the_paths_mtu_come_with_a_long_send() -> None:
    with listening() as listener:
        answer = answer_dial(
            FakeCall(
                token=TOKEN,
                host="alpha",
                targets=[{"address": "127.0.0.1", "port": listener.port}],
                wait_s=DEADLINE_S,
                send_s=0.2,
                send_bytes=None,
                echoes=3,
                window={"skip_s": 0.02, "count_s": 60.0},
            )
        )[0]

    assert answer["ok"], answer["error_text"]
    assert len(answer["echo_s"]) == 3
    assert min(answer["echo_s"]) > 0
    assert answer["goodput_bytes_per_s"] > 0
    if sys.platform == "linux":
        assert answer["path_mtu_bytes"] > 1000


def rested(port: int, rest_s: float) -> dict[str, Any]:
    targets = [{"address": "127.0.0.1", "port": port}]
    call = FakeCall(token=TOKEN, host="alpha", targets=targets, wait_s=1.0, echoes=1, rest_s=rest_s)
    return answer_dial(call)[0]


def test_a_connection_on_which_nothing_is_sent_for_a_while_lasts() -> None:
    with listening() as listener:
        began_s = time.monotonic()
        answer = rested(listener.port, 0.2)

    assert answer["ok"]
    assert len(answer["echo_s"]) == 1
    assert time.monotonic() - began_s >= 0.2


def test_a_connection_that_is_ended_while_nothing_is_sent_is_told_at_once() -> None:
    answers: list[dict[str, Any]] = []
    with listening() as listener:
        dialer = threading.Thread(target=lambda: answers.append(rested(listener.port, DEADLINE_S)))
        dialer.start()
        time.sleep(0.3)
        # As who ends connections of others does it.
        listener.call.cancelled.set()
        dialer.join(DEADLINE_S / 2)
        assert not dialer.is_alive()

    assert (answers[0]["ok"], answers[0]["connected"]) == (False, True)
    assert answers[0]["error"] == "ECONNRESET"
    assert answers[0]["rtt_s"] is not None


def test_another_token_is_not_answered() -> None:
    with listening() as listener:
        answer = dial(("127.0.0.1", listener.port), token="another")[0]

    assert not answer["ok"]
    assert answer["answered_by"] is None
    assert listener.came == []


def test_a_listener_is_gone_with_its_call_though_somebody_is_connected() -> None:
    with listening() as listener:
        silent = socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S)
        with silent:
            silent.sendall(json.dumps({"token": TOKEN, "from": "gamma"}).encode() + b"\n")
            assert silent.recv(100)
            listener.end()
            rest = silent.makefile("rb").read()
        answer = dial(("127.0.0.1", listener.port))[0]

    assert rest.count(b"\n") <= 1
    assert answer["error"] == "ECONNREFUSED"


def test_a_listener_ends_by_itself() -> None:
    with listening(limit_s=0.2) as listener:
        listener.thread.join(DEADLINE_S)

        assert not listener.thread.is_alive()


def test_a_dial_says_why_it_failed_and_the_others_go_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with listening() as listener:
        answers = dial(("127.0.0.1", port), ("127.0.0.1", listener.port))

    assert answers[0]["error"] == "ECONNREFUSED"
    assert answers[0]["error_text"]
    assert [answer["ok"] for answer in answers] == [False, True]


@pytest.fixture
def no_port_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives no port to whoever does not bring one."""
    connect = socket.create_connection

    def create(
        address: tuple[str, int], timeout: float, source_address: tuple[str, int] | None = None
    ) -> socket.socket:
        if source_address is None:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        return connect(address, timeout, source_address)

    monkeypatch.setattr(socket, "create_connection", create)


@pytest.mark.usefixtures("no_port_left")
def test_a_dial_without_a_port_of_its_own_tells_what_else_is_in_its_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with listening() as listener:
        answers = dial(("127.0.0.1", port), ("127.0.0.1", listener.port))

    assert [answer["error"] for answer in answers] == ["ECONNREFUSED", "EADDRNOTAVAIL"]


def test_a_server_of_another_kind_is_not_taken_for_a_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as guest:
                guest.sendall(b"220 mail.example ESMTP\r\n")
                guest.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        answer = dial(("127.0.0.1", other.getsockname()[1]))[0]
        thread.join(DEADLINE_S)

    assert answer["error"] == "EPROTO"
    assert not answer["ok"]

"""The kernel's figures of TCP connections, of this very process."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from yoked.agent.listeners import socket_inodes
from yoked.agent.tcp import Connection, connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sock_diag is Linux's")


@contextmanager
def pair(address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
        with one, other:
            yield one, other


def seen(of: socket.socket, family: socket.AddressFamily = socket.AF_INET) -> Connection:
    own = socket_inodes(os.getpid())
    (found,) = [
        each
        for each in connections(family)
        if each.inode in own and each.local == of.getsockname()[:2]
        and each.remote == of.getpeername()[:2]
    ]  # fmt: skip
    return found


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_what_was_not_read_waits_at_the_receiver(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pair(address) as (one, other):
        one.sendall(b"x" * 1000)
        until_s = time.monotonic() + 5
        while seen(other, family).unread_bytes < 1000 and time.monotonic() < until_s:
            time.sleep(0.01)
        sender, receiver = seen(one, family), seen(other, family)

    assert (receiver.unread_bytes, receiver.received_bytes) == (1000, 1000)
    assert (sender.unsent_bytes, sender.backoff, sender.established) == (0, 0, True)
    assert sender.sent_bytes >= 1000
    assert 0 < sender.rtt_s < 1


def test_what_the_receiver_has_no_room_for_waits_at_the_sender() -> None:
    with pair("127.0.0.1") as (one, _):
        one.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                one.send(b"x" * 65_536)

        until_s = time.monotonic() + 10
        while not seen(one).window_shut and time.monotonic() < until_s:
            time.sleep(0.05)

        assert seen(one).unsent_bytes > 0
        # The other end acknowledges: it is its program that does not read.
        assert seen(one).window_shut


def test_what_waits_for_a_first_answer_is_asked_for_by_itself() -> None:
    with socket.socket() as full, socket.socket() as late:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # The kernel drops what comes to a queue that is full, and the sender tries again.
        with socket.create_connection(full.getsockname()):
            late.setblocking(False)
            late.connect_ex(full.getsockname())
            own = socket_inodes(os.getpid())
            found = [end for end in connections(connecting=True) if end.inode in own]
            address = full.getsockname()

    assert [(end.remote, end.established) for end in found] == [(address, False)]


def test_a_process_that_is_gone_has_no_sockets() -> None:
    assert socket_inodes(2**22 + 1) == set()

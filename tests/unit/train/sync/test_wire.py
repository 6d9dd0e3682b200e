"""Waits of a wire: what is entered around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from yoked.train.sync.wire import LostPeerError, Pending, Wire


class Work:
    """A collective that is done, or fails, when it is waited for."""

    def __init__(self, seen: list[str], problem: str | None = None) -> None:
        self.seen, self.problem = seen, problem

    def wait(self) -> None:
        self.seen.append("wait")
        if self.problem:
            raise RuntimeError(self.problem)


@pytest.fixture
def wire() -> Wire:
    """One of two ranks, by its own account."""
    wire = Wire()
    wire.active, wire.world_size = True, 2
    return wire


def test_what_waits_are_within_is_entered_around_each_that_blocks(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(dist, "isend", lambda *args, **kwargs: Work(seen))

    def send() -> Pending:
        return wire.send(torch.ones(1), 1, 7, "a message")

    @contextmanager
    def around() -> Iterator[None]:
        seen.append("begins")
        yield
        seen.append("ends")

    with wire.waits_within(around):
        pending = send()
        pending.wait()
        pending.wait()
    send().wait()

    assert seen == ["begins", "wait", "ends", "wait"]


def test_what_is_entered_around_a_wait_is_left_when_a_peer_is_lost(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(dist, "irecv", lambda *args, **kwargs: Work(seen, "Connection closed"))

    @contextmanager
    def around() -> Iterator[None]:
        try:
            yield
        finally:
            seen.append("ends")

    with wire.waits_within(around), pytest.raises(LostPeerError, match="Connection closed"):
        wire.receive(torch.ones(1), 1, 7, "a message").wait()

    assert seen == ["wait", "ends"]

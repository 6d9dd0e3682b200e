from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from yoked.train.comm import heartbeat
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.heartbeat import run_with_heartbeat


def test_one_rank_just_acts():
    assert run_with_heartbeat(Communicator(), True, lambda: 7, "preparing data") == 7
    assert run_with_heartbeat(Communicator(), False, lambda: 7, "preparing data") is None


class Two(Communicator):
    """The first of two ranks that both work."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True

    def all_gather_json(self, value: Any, read: Callable[[Any], Any]) -> list[Any]:
        return [read(value)] * 2


def test_a_rank_that_is_done_waits_for_the_other_and_says_for_whom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(heartbeat, "default_store", lambda: store)
    comm, told = Two(), []
    turn = f"yoked/{comm.name}/{next(heartbeat._turns[comm.name]) + 1}"

    def waits_for(rank: int) -> None:
        told.append(rank)
        store.set(f"{turn}/{rank}/done", "1")

    found = run_with_heartbeat(comm, True, lambda: 7, "preparing data", waits_for)

    assert (found, told) == (7, [1])

"""The work that stands in for Gloo's; what it means over two ranks is tested in distributed/."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import Work

from yoked.launch.bootstrap.gloo import Supplied, lacks_futures

DEADLINE_S = 30


class Pending(Work):
    """Done when it is told."""

    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__()
        self.done = threading.Event()
        self.problem = problem

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        assert self.done.wait(DEADLINE_S)
        if self.problem is not None:
            raise self.problem
        return True

    def is_completed(self) -> bool:
        return self.done.is_set()


def test_a_future_is_there_before_the_work_is_done_and_holds_the_outputs() -> None:
    work, output = Pending(), torch.zeros(1)
    supplied = Supplied(work, [output])

    future = supplied.get_future()
    assert not future.done()
    assert not supplied.is_completed()
    work.done.set()

    assert future.wait() == [output]
    assert supplied.get_future() is future
    assert supplied.wait()


def test_what_the_work_raises_reaches_who_waits_for_the_future() -> None:
    work = Pending(RuntimeError("Connection closed by peer"))
    work.done.set()

    future = Supplied(work, []).get_future()

    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        future.wait()


def test_this_torchs_gloo_lacks_futures() -> None:
    # If this fails, torch has filled the gap: the substitute then goes unused, and can go.
    assert lacks_futures()

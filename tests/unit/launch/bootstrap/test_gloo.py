"""The work that stands in for Gloo's; what it means over two ranks is tested in distributed/."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch.distributed import Work

from yoked.launch.bootstrap.gloo import Supplied, missing

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
    supplied = Supplied([work], [output], lambda: output.fill_(3.0))

    future = supplied.get_future()
    assert not future.done()
    assert not supplied.is_completed()
    work.done.set()

    assert future.wait() == [output]
    assert output.item() == 3.0
    assert supplied.get_future() is future


def test_the_finish_runs_once_however_often_it_is_waited_for() -> None:
    work, output = Pending(), torch.zeros(1)
    work.done.set()
    supplied = Supplied([work], [output], lambda: output.add_(1.0))

    assert supplied.wait()
    assert supplied.is_completed()
    supplied.get_future().wait()

    assert output.item() == 1.0


def test_what_a_part_raises_reaches_who_waits_for_the_future() -> None:
    work = Pending(RuntimeError("Connection closed by peer"))
    work.done.set()

    future = Supplied([work], []).get_future()

    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        future.wait()


def test_this_torchs_gloo_lacks_what_the_module_says(snapshot: SnapshotAssertion) -> None:
    # If this fails, torch has filled a gap: the substitute then goes unused, and can go.
    assert missing() == snapshot

"""What the seam to torch.distributed adds: staging, errors with names, and a clock."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from yoked.errors import PeerLostError, YokedError
from yoked.train.comm.communicator import (
    CollectiveMismatchError,
    Communicator,
    MessageKind,
    Tag,
    Work,
)
from yoked.train.comm.step_clock import StepClock

TAG = Tag(MessageKind.GRADIENT, 7)


class TorchWork:
    """A collective that takes a while, or fails, when it is waited for."""

    def __init__(self, problem: str | None = None, takes_s: float = 0.0) -> None:
        self.problem, self.takes_s = problem, takes_s

    def wait(self) -> None:
        time.sleep(self.takes_s)
        if self.problem:
            raise RuntimeError(self.problem)


@pytest.fixture
def comm() -> Communicator:
    """One of two ranks, by its own account."""
    comm = Communicator()
    comm.active, comm.world_size = True, 2
    return comm


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("[pair.cc:537] Read error [10.0.0.2]:46784: Connection reset by peer.", PeerLostError),
        ("[unbound_buffer.cc:78] Timed out waiting 8000ms for recv", PeerLostError),
        ("", PeerLostError),
        ("ProcessGroupGloo::allgather: invalid tensor size at index 0", CollectiveMismatchError),
        ("op.nbytes. Is there a distributed collective mismatch?", CollectiveMismatchError),
    ],
)
def test_a_lost_peer_and_tensors_that_do_not_fit_are_different_errors(
    said: str, kind: type[YokedError], snapshot: SnapshotAssertion
) -> None:
    work = Work(TorchWork(said or " "), None, "new matrices", StepClock())

    with pytest.raises(kind) as caught:
        work.wait()
    assert str(caught.value) == snapshot


def test_waits_are_counted_by_what_they_wait_for_and_not_as_computing() -> None:
    clock = StepClock()
    clock.start()

    with clock.phase("forward"):
        Work(TorchWork(takes_s=0.2), None, "bytes", clock).wait()
        Work(TorchWork(takes_s=0.1), None, "ranks", clock, waits_for="ranks").wait()

    assert clock.blocked_s["bytes"] >= 0.2
    assert clock.blocked_s["ranks"] >= 0.1
    assert clock.phase_s["forward"] <= clock.computed_s < clock.blocked_s["bytes"]


def test_a_step_begins_with_a_clock_at_zero() -> None:
    clock = StepClock()
    with clock.blocked("bytes"), clock.phase("lm_head"):
        pass

    clock.start()

    assert clock.blocked_s == {"ranks": 0.0, "bytes": 0.0}
    assert not clock.phase_s


def test_what_is_received_for_a_device_is_not_read_from_it_first(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    into: list[Tensor] = []

    def irecv(tensor: Tensor, *args: object, **named: object) -> TorchWork:
        into.append(tensor)
        return TorchWork()

    monkeypatch.setattr(dist, "irecv", irecv)

    # Its values cannot be read.
    comm.irecv(torch.empty(3, device="meta"), 1, TAG, "a gradient").wait()

    assert [tensor.device.type for tensor in into] == ["cpu"]


def test_tags_of_all_kinds_and_numbers_differ() -> None:
    every = [Tag(kind, index).number for kind in MessageKind for index in (0, 1, 99_999)]

    assert len(set(every)) == len(every)
    assert max(every) < 900_000  # of yoked.ranks.proof

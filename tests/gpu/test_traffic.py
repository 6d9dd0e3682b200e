"""What one of eight ranks sends in a step over NCCL; the other seven are not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.gpu import simulated
from tests.gpu.tiny import tiny_trainer
from torch.testing._internal.distributed.fake_pg import FakeStore

from yoked.train.comm.communicator import Communicator

RANKS = 8


@pytest.fixture
def comm() -> Iterator[Communicator]:
    """Rank 0's. Backend `fake` of torch completes every collective at once."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield Communicator(dist.new_group(backend="fake"), dist.new_group(backend="fake"))
    dist.destroy_process_group()


def test_a_rank_sends_about_as_much_as_an_all_reduce_of_all_parameters(
    sim: torch.device, comm: Communicator
) -> None:
    with simulated.entered(nccl=True):
        trainer = tiny_trainer(sim, rows=[16] * RANKS, comm=comm)
        before = comm.bytes_sent
        trainer.step(0)
        trainer.drain()

    parameters = sum(p.numel() * 4 for p in trainer.model.parameters())
    all_reduce = 2 * (RANKS - 1) / RANKS * parameters
    assert comm.bytes_sent - before < 1.5 * all_reduce

"""Ranks as threads of one process: `on_ranks(2, act)` calls act with each rank's communicator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from yoked.ranks.exchange import decode, encode
from yoked.train.comm.communicator import Communicator, Tag, Work

PATIENCE_S = 30.0
T = TypeVar("T")


class Switchboard:
    """What all ranks share: a queue for each sender, receiver and tag, and a meeting place."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.lock = threading.Lock()
        self.queues: dict[tuple[int, int, int | Tag], queue.Queue[Tensor]] = {}
        self.barrier = threading.Barrier(world_size, timeout=PATIENCE_S)
        self.brought: list[Any] = [None] * world_size
        self.meetings = [0] * world_size

    def line(self, source: int, to: int, tag: int | Tag) -> queue.Queue[Tensor]:
        with self.lock:
            return self.queues.setdefault((source, to, tag), queue.Queue())

    def meet(self, rank: int, brought: Tensor) -> Callable[[], list[Tensor]]:
        """Waits for what each rank brought to its n-th meeting, in the order of ranks."""
        number = self.meetings[rank]
        self.meetings[rank] += 1
        for other in range(self.world_size):
            self.line(rank, other, -1 - number).put(brought.clone())
        return lambda: [
            self.line(source, rank, -1 - number).get(timeout=PATIENCE_S)
            for source in range(self.world_size)
        ]


class InMemoryCommunicator(Communicator):
    """One rank's end; collectives and messages complete when they are waited for."""

    def __init__(self, rank: int, board: Switchboard) -> None:
        super().__init__()
        self.active = board.world_size > 1
        self.rank, self.world_size, self.board = rank, board.world_size, board

    def all_reduce(self, tensor: Tensor, name: str) -> Work:
        self.bytes_sent += tensor.nbytes
        if not self.active:
            return Work(None, None, name, self.clock)
        met = self.board.meet(self.rank, tensor)
        return Work(None, lambda: _fill(tensor, torch.stack(met()).sum(0)), name, self.clock)

    def barrier_async(self) -> Work:
        return Work(None, None, "waiting", self.clock)

    def all_gather(self, tensor: Tensor, name: str) -> tuple[Tensor, Work]:
        self.bytes_sent += tensor.nbytes * (self.world_size - 1)
        gathered = tensor.new_empty(self.world_size, *tensor.shape)
        met = self.board.meet(self.rank, tensor)
        return gathered, Work(None, lambda: _fill(gathered, torch.stack(met())), name, self.clock)

    def all_gather_json(self, value: object, read: Callable[[Any], T]) -> list[T]:
        self.board.barrier.wait()
        self.board.brought[self.rank] = encode(value)
        self.board.barrier.wait()
        texts = list(self.board.brought)
        self.board.barrier.wait()
        return [decode(text, rank, read) for rank, text in enumerate(texts)]

    def all_to_all(self, tensor: Tensor, name: str) -> tuple[Tensor, Work]:
        self.bytes_sent += tensor.nbytes * (self.world_size - 1) // self.world_size
        swapped, met = torch.empty_like(tensor), self.board.meet(self.rank, tensor)

        def arrive() -> None:
            _fill(swapped, torch.stack([part[self.rank] for part in met()]))

        return swapped, Work(None, arrive, name, self.clock)

    def reduce(self, tensor: Tensor, dst: int, name: str) -> Work:
        return self.all_reduce(tensor, name)

    def broadcast(self, tensor: Tensor, src: int, name: str, *, control: bool = False) -> Work:
        del control
        self.bytes_sent += tensor.nbytes if self.rank == src else 0
        met = self.board.meet(self.rank, tensor)
        return Work(None, lambda: _fill(tensor, met()[src]), name, self.clock)

    def isend(self, tensor: Tensor, dst: int, tag: Tag, name: str) -> Work:
        self.bytes_sent += tensor.nbytes
        self.board.line(self.rank, dst, tag).put(tensor.clone())
        return Work(None, None, name, self.clock)

    def irecv(self, tensor: Tensor, src: int, tag: Tag, name: str) -> Work:
        line = self.board.line(src, self.rank, tag)

        def arrive() -> None:
            tensor.copy_(line.get(timeout=PATIENCE_S))

        return Work(None, arrive, name, self.clock)


def _fill(tensor: Tensor, arrived: Tensor) -> None:
    tensor.copy_(arrived)


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., list[Any]]:
    """What a function of a communicator returns on each rank, all at once."""
    return _on_ranks


def _on_ranks(world_size: int, act: Callable[[InMemoryCommunicator], T]) -> list[T]:
    board = Switchboard(world_size)
    results: list[Any] = [None] * world_size
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = act(InMemoryCommunicator(rank, board))
        except Exception as problem:  # noqa: BLE001 - raised again below
            problems.append(problem)
            board.barrier.abort()

    # Ranks are threads already.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    if problems:
        raise problems[0]
    assert all(line.empty() for line in board.queues.values()), "a message nobody received"
    return results

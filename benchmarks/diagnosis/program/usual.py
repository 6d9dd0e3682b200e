"""An ordinary data-parallel script with all that takes its time in one. Imports no yoked.

usage: usual.py [--compile]

Rank 0 alone evaluates and saves, each now and then, and the others wait for it; all ranks evaluate
together; the loader of rows has a process of its own, and is made anew for each epoch; from some
epoch on a step has twice as many rows.
"""

import os
import pathlib
import sys

import acts
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, ROWS, CLASSES, BATCHES = 512, 640, 10, 90
SAVE_EVERY, ALONE_EVERY, TOGETHER_EVERY = 70, 110, 160
ALONE_BATCHES, TOGETHER_BATCHES = 60, 25
LONGER_FROM = 4

Rows = tuple[torch.Tensor, torch.Tensor]


class MadeUp(Dataset[Rows]):
    """Rows of an epoch, the same each time."""

    def __init__(self, rows: int, rank: int) -> None:
        self._rows, self._rank = rows, rank

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, at: int) -> Rows:
        draw = torch.Generator().manual_seed(at * 100 + self._rank)
        rows = torch.randn(self._rows, WIDTH, generator=draw)
        return rows, torch.randint(CLASSES, (self._rows,), generator=draw)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    if "--compile" in sys.argv:
        model.compile()
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = 0
    for epoch in range(1_000_000):
        rows = ROWS * (2 if epoch >= LONGER_FROM else 1)
        for inputs, labels in DataLoader(MadeUp(rows, rank), batch_size=None, num_workers=1):
            acts.do(acts.due())
            loss = nn.functional.cross_entropy(trained(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                if rank == 0:
                    keep(model, optimizer)
                dist.barrier()
            if step % ALONE_EVERY == 0:
                if rank == 0:
                    mean_loss(model, ALONE_BATCHES)
                dist.barrier()
            if step % TOGETHER_EVERY == 0:
                told = mean_loss(model, TOGETHER_BATCHES)
                dist.all_reduce(told)
            print("step", step, flush=True)


def keep(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The whole state, and it is on the disk after that."""
    with open("new.pt", "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    pathlib.Path("new.pt").replace("checkpoint.pt")


@torch.no_grad()
def mean_loss(model: nn.Module, batches: int) -> torch.Tensor:
    """On rows that no rank trains on."""
    total = torch.zeros(1)
    for at in range(batches):
        inputs, labels = MadeUp(ROWS, 99)[at]
        total += nn.functional.cross_entropy(model(inputs), labels)
    return total / batches


main()

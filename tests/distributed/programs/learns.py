"""Programs that learn together, or only seem to; the first argument says how.

After its first four steps one waits for the file that the second argument names, if there is one.
"""

from __future__ import annotations

import sys
import time
from os import environ
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, HOW = int(environ["RANK"]), sys.argv[1]
GO = Path(sys.argv[2]) if len(sys.argv) > 2 else None
STEPS, PATIENCE_S = 6, 60.0

torch.set_num_threads(1)
torch.manual_seed(RANK if HOW == "unseeded" else 0)
if HOW not in ("plain", "unseeded", "same-rows", "rank-0"):
    dist.init_process_group()
model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
if HOW in ("ddp", "accumulates"):
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.Generator().manual_seed(0 if HOW == "same-rows" else RANK)


def backward() -> torch.Tensor:
    loss = model(torch.randn(8, 32, generator=rows)).square().mean()
    loss.backward()
    return loss.detach()


for step in range(0 if HOW == "rank-0" and RANK else STEPS):
    optimizer.zero_grad()
    if HOW == "accumulates":
        assert isinstance(model, DistributedDataParallel)
        with model.no_sync():
            backward()
    loss = backward()
    optimizer.step()
    if HOW == "forgot-ddp":
        # What it shows is of all ranks; what it learns is not.
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if HOW == "averages" and step == 4:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    until_s = time.monotonic() + PATIENCE_S
    while GO is not None and step == 3 and not GO.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
print(f"rank {RANK} is through")
if dist.is_initialized():
    dist.destroy_process_group()

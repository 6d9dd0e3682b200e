"""A plain DistributedDataParallel script, as people write it for one machine of GPUs.

It knows nothing of Gloo: it asks for NCCL, averages with ReduceOp.AVG, and chains a future to
reduce_scatter. The test compares it with the same training in one process.
"""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, WIDTH = 6, 4, 8


def build() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))


def rows(step: int, rank: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=dice)
    return inputs, inputs.sum(dim=1, keepdim=True)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def main() -> None:
    dist.init_process_group(backend="nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else "cpu"
    model = DistributedDataParallel(build().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        inputs, targets = rows(step, rank)
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    weights = flat(model)
    mine = torch.empty(2, device=device)
    scattered = torch.arange(2.0 * ranks, device=device) + rank
    work = dist.reduce_scatter_single(mine, scattered, op=dist.ReduceOp.AVG, async_op=True)
    doubled = work.get_future().then(lambda future: [2 * part for part in future.value()])
    print(
        json.dumps(
            {"losses": losses, "weights": weights.tolist(), "part": doubled.wait()[0].tolist()}
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

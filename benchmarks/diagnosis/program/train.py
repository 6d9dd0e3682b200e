"""An ordinary data-parallel script on Gloo: a small network on made-up data. Imports no yoked.

usage: train.py STEPS [--plain]

--plain: one all_reduce of all gradients a step, in place of DDP's and the metrics'.
"""

import pathlib
import sys

import acts
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, PLAIN = int(sys.argv[1]), "--plain" in sys.argv
WIDTH, ROWS, CLASSES = 768, 2000, 10
SAVE_EVERY = 15


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    trained = model if PLAIN else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(1 + rank)
    for step in range(1, STEPS + 1):
        act = acts.due()
        acts.do(act)
        if act == "out":
            break
        rows = torch.randn(ROWS, WIDTH, generator=draw)
        labels = torch.randint(CLASSES, (ROWS,), generator=draw)
        loss = nn.functional.cross_entropy(trained(rows), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if PLAIN and act != "skip-equal":
            average(model)
        optimizer.step()
        if not PLAIN and act != "skip":
            if act == "shapes":
                acts.stamp()
            # Loss, and how many rows were right; one rank counts something more.
            metrics = torch.zeros(3 if act == "shapes" else 2)
            metrics[0] = loss.detach()
            dist.all_reduce(metrics)
        if act == "skip":
            acts.stamp()
        if step % SAVE_EVERY == 0:
            save(model, rank)
        print("step", step, flush=True)
    acts.stamp()


def average(model: nn.Module) -> None:
    """All gradients, in one all_reduce."""
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [grad.numel() for grad in grads]
    for grad, part in zip(grads, torch.split(flat, sizes), strict=True):
        grad.copy_(part.view_as(grad))


def save(model: nn.Module, rank: int) -> None:
    """Each rank its own file, as programs with sharded states do; the last one goes after that."""
    new, last = (pathlib.Path(f"{name}.{rank}.pt") for name in ("new", "checkpoint"))
    try:
        torch.save(model.state_dict(), new)
    except (OSError, RuntimeError):
        acts.stamp()
        raise
    new.replace(last)


main()

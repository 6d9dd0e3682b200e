"""A program that asks for its rank before it starts a group of its own."""

from __future__ import annotations

import json
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    rank_before = dist.get_rank()
    dist.init_process_group("nccl", timeout=timedelta(seconds=77))
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    try:
        dist.get_rank()
        restarted = True
    except ValueError:
        restarted = False
    print(json.dumps({"before": rank_before, "total": total.item(), "restarted": restarted}))


if __name__ == "__main__":
    main()

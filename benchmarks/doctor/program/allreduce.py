"""The smallest training there is: all ranks add up some numbers, small and large, and agree."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for numel in (1, 1_000, 1_000_000):
    numbers = torch.full((numel,), float(rank + 1))
    dist.all_reduce(numbers)
    assert numbers.eq(world * (world + 1) / 2).all(), numbers
dist.barrier()
if rank == 0:
    print(f"ALL {world} RANKS AGREE", flush=True)
dist.destroy_process_group()

"""The smallest job: one all-reduce, and the time at which it was done."""

import time

import torch
import torch.distributed as dist

imported_s = time.time()
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"FIRST {time.time()} IMPORTED {imported_s} WORLD {int(total)}", flush=True)
dist.destroy_process_group()

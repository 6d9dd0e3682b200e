"""A job of numbered steps with a checkpoint: `steps.py COUNT SECONDS [--resume]`.

Every step is an all-reduce, a line on each stream, and a number on the disk of rank 0's host.
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

count, pause_s = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
state = pathlib.Path.home() / f"steps-{os.environ['YOKED_RUN']}"
first = torch.zeros(1, dtype=torch.int64)
if rank == 0 and "--resume" in sys.argv and state.exists():
    first[0] = int(state.read_text())
dist.broadcast(first, 0)
for step in range(int(first), count):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == dist.get_world_size()
    print(f"rank {rank} step {step} of {count} " + "." * 200, flush=True)
    print(f"rank {rank} error stream {step}", file=sys.stderr, flush=True)
    if rank == 0:
        unfinished = state.with_suffix(".unfinished")
        unfinished.write_text(str(step + 1))
        unfinished.rename(state)
    time.sleep(pause_s)
print(f"rank {rank} done from {int(first)}", flush=True)
dist.destroy_process_group()

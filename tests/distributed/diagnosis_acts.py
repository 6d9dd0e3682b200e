"""What ranks do in test_diagnosis: all-reduce for ever, until rank 2 does what the act says."""

from __future__ import annotations

import atexit
import sys
import threading
import time

import torch
import torch.distributed as dist

ACT = sys.argv[1]
STEPS = 20

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
step = 0
while True:
    if step == STEPS and rank == 2:
        if ACT == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        elif ACT == "lingers":
            # As a process does that has much memory to give back: its program is over.
            atexit.register(time.sleep, 15)
            sys.exit(0)
        elif ACT == "ends":
            sys.exit(0)
        elif ACT == "shapes":
            dist.all_reduce(torch.ones(7))
        elif ACT == "skips":
            dist.all_reduce(torch.ones(10))
            continue
        elif ACT == "skips and computes":
            dist.all_reduce(torch.ones(100_000))
            work = dist.all_reduce(torch.ones(100_000), async_op=True)
            # It hears no sooner that a peer aborted, as in DDP's backward pass.
            time.sleep(20)
            work.wait()
        elif ACT == "raises":
            raise ValueError("no such row")
    dist.all_reduce(torch.ones(100_000))
    dist.all_reduce(torch.ones(10))
    time.sleep(0.02)
    step += 1
    print("step", step, flush=True)

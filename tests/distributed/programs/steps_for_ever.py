"""Takes steps until it is ended, and says now and then how its torch looks.

With `ddp` DistributedDataParallel exchanges the gradients.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
model = torch.nn.Linear(10, 100, bias=False)
by_ddp = "ddp" in sys.argv
trained = torch.nn.parallel.DistributedDataParallel(model) if by_ddp else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
was = dict(vars(ProcessGroup)), torch.autograd.backward
while True:
    for batch in DataLoader(torch.randn(64, 10), batch_size=8):
        optimizer.zero_grad()
        trained(batch).square().mean().backward()
        if not by_ddp:
            dist.all_reduce(model.weight.grad)
        optimizer.step()
        message = torch.ones(1)
        if rank == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
        dist.barrier()
        step += 1
        time.sleep(0.01)
        if step % 20 == 0 and rank == 0:
            wrapped = was != (dict(vars(ProcessGroup)), torch.autograd.backward)
            print(f"step {step}, wrapped: {wrapped}", flush=True)

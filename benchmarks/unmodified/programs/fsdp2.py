"""FSDP2 (fully_shard) as in its tutorial: each rank keeps a part of each parameter."""

import os

import torch
import torch.distributed as dist
from small import STEPS, build, check, loss_of
from torch.distributed.fsdp import fully_shard

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group(backend="nccl")
model = build().to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(STEPS):
    loss_of(model, step, [dist.get_rank()]).backward()
    optimizer.step()
    optimizer.zero_grad()
check([each.detach().full_tensor() for each in model.parameters()], dist.get_world_size())
dist.destroy_process_group()

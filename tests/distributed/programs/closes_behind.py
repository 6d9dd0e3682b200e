"""A rank that closes Gloo's port behind it, and then says where it was and that the group works."""

from __future__ import annotations

import json
import os
import socket
import sys

import torch
import torch.distributed as dist

from yoked.ranks.listeners import _listening, closed_behind

with closed_behind():
    dist.init_process_group("gloo")
ports = []
for descriptor in _listening().values():
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        ports.append(listener.getsockname()[:2])
sys.stdout.write(json.dumps(ports) + "\n")
sys.stdout.flush()
# The test dials meanwhile.
sys.stdin.readline()
total = torch.ones(1)
dist.all_reduce(total)
with closed_behind():
    second = dist.new_group(backend="gloo")
dist.all_reduce(total, group=second)
sys.stdout.write(f"{total.item():g}\n")
dist.destroy_process_group()

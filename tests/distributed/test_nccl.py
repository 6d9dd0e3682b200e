"""A rank that waits on its GPU for another is freed by NCCL's own abort.

Without GPUs Gloo's groups pose as NCCL's: then all but the abort itself is as torch has it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch
from tests.distributed.test_host_program import DEADLINE_S, SOURCE

pytestmark = pytest.mark.distributed

PROGRAM = """
import os, sys, threading, torch, torch.distributed as dist
from torch.distributed import distributed_c10d
from yoked.ranks.freeing import free_rank
rank, backend = int(os.environ["RANK"]), sys.argv[1]
if backend == "nccl":
    torch.cuda.set_device(rank)
else:
    distributed_c10d.ProcessGroupNCCL = distributed_c10d.ProcessGroupGloo
dist.init_process_group(backend)
numbers = torch.ones(1000, device="cuda" if backend == "nccl" else "cpu")
dist.all_reduce(numbers)
numbers.sum().item()
print("begun", flush=True)
if rank == 1:
    sys.stdin.read()
threading.Timer(2.0, free_rank).start()
dist.all_reduce(numbers)
numbers.sum().item()
print("went on", flush=True)
"""


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def test_a_rank_that_nccl_holds_raises_and_does_not_go_on(backend: str) -> None:
    count = torch.cuda.device_count()
    if backend == "nccl" and count < 2:
        pytest.skip(f"NCCL between two ranks takes two CUDA devices, and here are {count}")
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = str(opened.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, backend],
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "YOKED_RANK_ADDRESSES": "127.0.0.1",
                # As a rank of a run has it.
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said, complained = ranks[0].communicate(timeout=DEADLINE_S)
    finally:
        for rank in ranks:
            rank.kill()
        ranks[1].communicate()

    assert said == "begun\n"
    assert "NcclAbortedError: a peer was lost in a collective of NCCL" in complained

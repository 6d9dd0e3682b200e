"""DDP takes its own hooks in bfloat16 on Gloo; over two ranks: tests/distributed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from yoked.launch.bootstrap.ddp_hooks import accept_bf16_hooks


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedDataParallel]:
    """On a group of one rank; DDP is as before afterwards."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(
        DistributedDataParallel,
        "_check_comm_hook",
        DistributedDataParallel._check_comm_hook,
    )
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    # A thread of Gloo's lets go of what DDP has sent meanwhile. Where it still holds a tensor of
    # Python's as the group is taken down, that waits for the thread, and it for the interpreter.
    dist.barrier()
    yield model
    dist.destroy_process_group()


def test_torch_refuses_bfloat16_hooks_and_takes_them_here(model: DistributedDataParallel) -> None:
    # If this raises nothing, torch takes them itself, and ours can go.
    with pytest.raises(TypeError, match="NCCL"):
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)

    accept_bf16_hooks()
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)

    # What it averages is seen with real ranks (tests/distributed/programs/collectives.py): here a
    # thread of Gloo's may still hold the hook's future as the group is taken down, and both wait.
    assert [hook for hook, _ in model._comm_hooks] == [default_hooks.bf16_compress_hook]


def test_a_hook_that_torch_refuses_for_another_reason_stays_refused(
    model: DistributedDataParallel,
) -> None:
    accept_bf16_hooks()

    def bf16_compress_hook(_: object, bucket: int) -> None: ...

    with pytest.raises(ValueError, match="annotation"):
        model.register_comm_hook(None, bf16_compress_hook)

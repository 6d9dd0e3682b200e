"""What NCCL has and Gloo lacks, each compared with what it means; prints the names that failed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

# torch's own advice about names that programs go on using.
warnings.simplefilter("ignore", FutureWarning)

TRIALS: list[Callable[[int], bool]] = []


def trial(function: Callable[[int], bool]) -> Callable[[int], bool]:
    TRIALS.append(function)
    return function


@trial
def average_of_bfloat16_is_as_it_was(rank: int) -> bool:
    tensor = torch.tensor([1.0 + 2 * rank], dtype=torch.bfloat16)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return tensor.item() == 2 and tensor.dtype == torch.bfloat16


@trial
def reduce_scatter_has_a_future(rank: int) -> bool:
    mine = torch.empty(1)
    work = dist.reduce_scatter_tensor(mine, torch.tensor([1.0, 2.0]), async_op=True)
    value = work.get_future().wait()
    return len(value) == 1 and value[0].item() == [2.0, 4.0][rank] and work.wait()


@trial
def reduce_scatter_of_a_list_has_a_future(rank: int) -> bool:
    mine = torch.empty(1)
    parts = [torch.tensor([1.0]), torch.tensor([2.0])]
    dist.reduce_scatter(mine, parts, async_op=True).get_future().wait()
    return mine.item() == [2.0, 4.0][rank]


@trial
def send_and_receive_have_futures(rank: int) -> bool:
    tensor = torch.tensor([7.0 * (1 - rank)])
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor)
    return work.get_future().wait()[0].item() == 7.0


def exchanged(rank: int, device: torch.device | None, *, blocking: bool, later: bool) -> bool:
    """Each rank sends to the other within one coalescing manager, and receives."""
    mine, theirs = torch.full((1000,), 1.0 + rank), torch.zeros(1000)
    send, receive = (dist.send, dist.recv) if blocking else (dist.isend, dist.irecv)
    with _coalescing_manager(dist.group.WORLD, device, async_ops=later) as manager:
        send(mine, 1 - rank)
        receive(theirs, 1 - rank)
    if later:
        manager.wait()
    return theirs.unique().tolist() == [2.0 - rank]


@trial
def sends_within_a_coalescing_manager_are_waited_for(rank: int) -> bool:
    return all(
        exchanged(rank, device, blocking=blocking, later=later)
        for device in (None, torch.device("cpu"))
        for blocking in (False, True)
        for later in (False, True)
    )


@trial
def collectives_are_coalesced_where_a_device_is_named(rank: int) -> bool:
    tensors = [torch.full((2,), 1.0 + rank), torch.full((3,), 10.0)]
    with _coalescing_manager(dist.group.WORLD, torch.device("cpu")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    return [tensor.tolist() for tensor in tensors] == [[3.0] * 2, [20.0] * 3]


def gradient_by(hook: Callable[..., Any], state: object, rank: int) -> list[float]:
    """The gradient that DDP gives with a hook; the ranks' own are 1 and 3 times the row."""
    model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model.register_comm_hook(state, hook)
    for _ in range(2):
        model.zero_grad()
        (model(torch.tensor([[1.0, 2.0, -4.0]])) * (1 + 2 * rank)).sum().backward()
    return model.module.weight.grad.flatten().tolist()


@trial
def ddps_own_hooks_in_sixteen_bits_average(rank: int) -> bool:
    wrapped = [
        hooks.fp16_compress_wrapper(hooks.allreduce_hook),
        hooks.bf16_compress_wrapper(hooks.allreduce_hook),
    ]
    every = (hooks.allreduce_hook, hooks.fp16_compress_hook, hooks.bf16_compress_hook, *wrapped)
    return all(gradient_by(hook, None, rank) == [2.0, 4.0, -8.0] for hook in every)


@trial
def a_new_group_on_nccl_works(rank: int) -> bool:
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=dist.new_group([0, 1], backend="nccl"))
    return tensor.item() == 2


@trial
def what_both_refuse_is_refused(rank: int) -> bool:
    try:
        dist.all_reduce(torch.tensor([True]), op=dist.ReduceOp.AVG)
    except RuntimeError:
        return True
    return False


def main() -> None:
    # With the hint that NCCL takes, and a rank without CUDA could not follow.
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", 0))
    rank = dist.get_rank()
    failed = [function.__name__ for function in TRIALS if not function(rank)]
    print(json.dumps({"tried": len(TRIALS), "failed": failed, "backend": dist.get_backend()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

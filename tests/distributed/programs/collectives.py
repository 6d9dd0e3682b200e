"""What NCCL has and Gloo lacks, each compared with what it means; prints the names that failed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

# torch's own advice about names that programs go on using.
warnings.simplefilter("ignore", FutureWarning)

TRIALS: list[Callable[[int], bool]] = []


def trial(function: Callable[[int], bool]) -> Callable[[int], bool]:
    TRIALS.append(function)
    return function


def both(first: list[float], second: list[float], dtype: torch.dtype) -> Iterator[Tensor]:
    for values in (first, second):
        yield torch.tensor(values).to(dtype)


@trial
def average_of_integers_rounds_to_zero(rank: int) -> bool:
    tensor = [*both([5, -5, 4], [2, -2, 4], torch.int64)][rank]
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return tensor.tolist() == [3, -3, 4]


@trial
def average_of_bytes_scattered(rank: int) -> bool:
    mine = torch.empty(1, dtype=torch.uint8)
    tensor = [*both([7, 9], [2, 200], torch.uint8)][rank]
    dist.reduce_scatter_tensor(mine, tensor, op=dist.ReduceOp.AVG)
    return mine.tolist() == [[4], [104]][rank] and tensor.tolist() == [[7, 9], [2, 200]][rank]


@trial
def average_of_integers_at_the_root_alone(rank: int) -> bool:
    tensor = torch.tensor([3 + 4 * rank])
    dist.reduce(tensor, dst=1, op=dist.ReduceOp.AVG)
    return rank == 0 or tensor.tolist() == [5]


@trial
def average_of_integers_as_a_future(rank: int) -> bool:
    tensor = torch.tensor([3 + 4 * rank])
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    value = work.get_future().then(lambda future: future.value()[0].item()).wait()
    work.wait()
    return value == 5 and tensor.item() == 5 and work.is_completed()


@trial
def average_of_bfloat16_is_as_it_was(rank: int) -> bool:
    tensor = torch.tensor([1.0 + 2 * rank], dtype=torch.bfloat16)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return tensor.item() == 2 and tensor.dtype == torch.bfloat16


@trial
def scaled_sum_in_place(rank: int) -> bool:
    tensor = torch.tensor([2.0 + rank])
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    return tensor.item() == 2.5


@trial
def scaled_sum_leaves_the_input_alone(rank: int) -> bool:
    mine, tensor = torch.empty(1), torch.tensor([1.0, 2.0])
    dist.reduce_scatter_tensor(mine, tensor, op=dist._make_nccl_premul_sum(0.25))
    return mine.item() == [0.5, 1.0][rank] and tensor.tolist() == [1.0, 2.0]


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
def float8_is_gathered(rank: int) -> bool:
    tensor = torch.tensor([1.5, -2.0 - rank]).to(torch.float8_e4m3fn)
    every = torch.empty(4, dtype=torch.float8_e4m3fn)
    dist.all_gather_into_tensor(every, tensor)
    return every.float().tolist() == [1.5, -2.0, 1.5, -3.0]


@trial
def float8_is_broadcast_and_exchanged(rank: int) -> bool:
    tensor = torch.tensor([4.0 * (1 - rank), 0.5]).to(torch.float8_e5m2)
    dist.broadcast(tensor, src=0)
    swapped = torch.empty_like(tensor)
    dist.all_to_all_single(swapped, tensor)
    return swapped.float().tolist() == [[4.0, 4.0], [0.5, 0.5]][rank]


@trial
def float8_future_has_its_dtype(rank: int) -> bool:
    tensor = torch.tensor([3.0 * (1 - rank)]).to(torch.float8_e5m2)
    value = dist.broadcast(tensor, src=0, async_op=True).get_future().wait()
    return value[0].dtype == torch.float8_e5m2 and value[0].float().item() == 3.0


@trial
def tensors_of_unequal_size_are_gathered(rank: int) -> bool:
    every = [torch.empty(1), torch.empty(3)]
    dist.all_gather(every, torch.full((1 + 2 * rank,), float(rank)))
    return [part.tolist() for part in every] == [[0.0], [1.0, 1.0, 1.0]]


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

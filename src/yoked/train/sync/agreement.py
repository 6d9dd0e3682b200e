"""What all ranks must agree on: the weights, and the state that goes into a checkpoint."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from yoked.errors import DivergedError
from yoked.train.comm.communicator import Communicator
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW, OptimizerState
from yoked.train.optim.param_buffers import Bucket, ParamBuffers
from yoked.units import format_bytes

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DIGEST_BYTES = 16


def checksum(tensor: Tensor) -> int:
    """The sum of a tensor's bit patterns: any one difference changes it. Reads it once."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def check_weights(model: GPT, comm: Communicator, step: int) -> None:
    """Raise DivergedError, naming rank and parameter, unless all ranks hold the same weights.

    Collective. Traffic a rank: 8 bytes a parameter tensor.
    """
    if not comm.active:
        return
    names = [name for name, _ in model.named_parameters()]
    mine = torch.tensor([checksum(p) for p in model.parameters()], dtype=torch.int64)
    gathered, pending = comm.all_gather(mine, "comparing weights")
    pending.wait()
    by_rank = [tuple(row) for row in gathered.tolist()]
    if len(set(by_rank)) == 1:
        return
    common = Counter(by_rank).most_common(1)[0][0]
    odd = [rank for rank, sums in enumerate(by_rank) if sums != common]
    first = next(i for i in range(len(names)) if by_rank[odd[0]][i] != common[i])
    who = f"rank {odd[0]} holds" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} hold"
    # With two ranks no majority says which one is wrong.
    versus = "the other" if comm.world_size == 2 else "the others"
    raise DivergedError(
        f"after step {step}, {who} other weights than {versus}, "
        f"first in {names[first]}: ranks have stopped learning the same thing",
        fix="go on from the last checkpoint with --resume; "
        "if it comes back, test that host's memory",
    )


def fingerprint(tensor: Tensor) -> Tensor:
    """(2,) int64: BLAKE2b of a tensor's bits. Others have others."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(content.numpy().data, digest_size=_DIGEST_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64)


def same_start(
    buffers: ParamBuffers, optimizer: MuonAdamW, comm: Communicator, say: Callable[[str], object]
) -> None:
    """Every rank takes over rank 0's weights and AdamW state. Collective, once a start.

    Random numbers and saved files are rank 0's alone: other hosts may draw or hold others. What
    all hold alike does not travel: in a new run that is mostly everything, and at 100 Mbit/s it
    would take half a minute. say: told of what does, before it sets out.
    """
    if not comm.active:
        return
    tensors = [
        *(parameter.data for parameter in buffers.parameters.values()),
        *optimizer.exp_avg.values(),
        *optimizer.exp_avg_sq.values(),
    ]
    if comm.device_group is None:
        tensors = _unlike(tensors, comm)
        if tensors:
            size_bytes = sum(tensor.nbytes for tensor in tensors)
            say(f"sending {format_bytes(size_bytes)} of weights and optimizer state to all ranks")
    # Matrices are views of one buffer; contiguous views travel in place.
    for pending in [comm.broadcast(tensor, 0, "the first weights") for tensor in tensors]:
        pending.wait()


def _unlike(tensors: Sequence[Tensor], comm: Communicator) -> list[Tensor]:
    """Those of which some rank holds another one than rank 0; the same ones on all ranks."""
    mine = torch.stack([fingerprint(tensor) for tensor in tensors])
    by_rank, pending = comm.all_gather(mine, "comparing the first weights")
    pending.wait()
    unlike = (by_rank != by_rank[0]).any(dim=2).any(dim=0)
    return [tensor for tensor, differs in zip(tensors, unlike.tolist(), strict=True) if differs]


def whole_state(optimizer: MuonAdamW, comm: Communicator) -> OptimizerState:
    """The optimizer's state with the matrices of all owners, on every rank. Collective."""
    buffers = optimizer.buffers
    muon: dict[str, dict[str, Tensor]] = {}
    for bucket in buffers.buckets:
        momentum, second = _bucket_state(optimizer, bucket)
        for tensor in (momentum, second):
            comm.broadcast(tensor, bucket.owner, "the optimizer's state").wait()
        for index, name in enumerate(bucket.names):
            muon[name] = {
                "momentum_buffer": momentum[index],
                "second_momentum_buffer": second[index],
            }
    return {
        "adamw": optimizer.adamw_state(),
        "muon": muon,
        "settings": group_settings(buffers.groups),
    }


def _bucket_state(optimizer: MuonAdamW, bucket: Bucket) -> tuple[Tensor, Tensor]:
    """The owner's own tensors; elsewhere room for them."""
    if bucket in optimizer.momentum:
        return optimizer.momentum[bucket], optimizer.second_moment[bucket]
    momentum = torch.empty_like(bucket.view(optimizer.buffers.matrices))
    return momentum, optimizer.empty_second_moment(bucket)

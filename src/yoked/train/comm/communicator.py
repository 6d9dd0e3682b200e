"""Collectives with what the training needs around them: staging, byte counts, clear errors.

Gloo takes tensors in host memory; where the model lives on a GPU and the group is Gloo (mixed
device types), payloads are staged through the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from yoked.errors import YokedError
from yoked.ranks.exchange import Read, decode, encode, gather_json

# Tags tell messages apart that two ranks exchange at the same time; each kind counts from here.
GRADIENT_TAG = 1_000
UPDATE_TAG = 100_000
PIECE_TAG = 200_000
ROWS_TAG = 300_000
DIVIDED_TAG = 500_000
MOVE_TAG = 600_000

T = TypeVar("T")


class PeerLostError(YokedError):
    """A collective failed: another rank died, was cut off, or did something else."""


class Work:
    """A collective on its way. `wait` blocks until its result is in the caller's tensor."""

    def __init__(self, work: Any, finish: Callable[[], None] | None, name: str) -> None:
        self._work, self._finish, self._name = work, finish, name

    def wait(self) -> None:
        """Raises PeerLostError if the collective failed or passed the group's deadline."""
        if self._work is not None:
            try:
                self._work.wait()
            except RuntimeError as error:
                raise _lost(self._name, error) from error
            self._work = None
        if self._finish is not None:
            self._finish()
            self._finish = None

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._work is None or bool(self._work.is_completed())


def _lost(name: str, error: RuntimeError) -> PeerLostError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return PeerLostError(
        f"a peer was lost in {name}: {first_line}",
        fix="look at the logs of the other ranks for the first failure, then go on with --resume",
    )


class Communicator:
    """The collectives of a run; with one rank, nothing happens and nothing is sent.

    The default process group is Gloo's. device_group: NCCL's, where every rank has a CUDA
    device; without it, tensors on a device are staged through host memory. control_group: Gloo
    with connections of its own, for messages that must not queue behind gradients.
    """

    def __init__(
        self,
        device_group: dist.ProcessGroup | None = None,
        control_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.active = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if self.active else 0
        self.world_size = dist.get_world_size() if self.active else 1
        self.device_group, self.control_group = device_group, control_group
        self.bytes_sent = 0

    @property
    def peers(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """None: the default group."""
        return None if tensor.device.type == "cpu" else self.device_group

    def _staging(self, tensor: Tensor) -> Tensor:
        """The tensor itself where a group can take it, else a copy in host memory."""
        direct = tensor.device.type == "cpu" or self.device_group is not None
        return tensor if direct else tensor.cpu()

    def _run(
        self, name: str, tensor: Tensor, sent_bytes: float, start: Callable[[Tensor], Any]
    ) -> Work:
        """Start a collective that works in place on `tensor`, through the host if need be."""
        self.bytes_sent += round(sent_bytes)
        staging = self._staging(tensor)
        try:
            work = start(staging)
        except RuntimeError as error:
            raise _lost(name, error) from error
        moved = staging is not tensor
        finish = (lambda: _copy_back(tensor, staging)) if moved else None
        return Work(work, finish, name)

    def all_reduce(self, tensor: Tensor, name: str) -> Work:
        """Sum in place over all ranks. Traffic a rank: 2(N-1)/N of the payload."""
        if not self.active:
            return Work(None, None, name)
        n = self.world_size
        return self._run(
            name,
            tensor,
            2 * (n - 1) / n * tensor.nbytes,
            lambda t: dist.all_reduce(t, group=self._group_for(t), async_op=True),
        )

    def barrier_async(self) -> Work:
        """Done when every rank has called this: tells waiting from sending."""
        if not self.active:
            return Work(None, None, "waiting for all ranks")
        return self._run(
            "waiting for all ranks",
            torch.zeros(1),
            2,
            lambda t: dist.all_reduce(t, group=self.control_group, async_op=True),
        )

    def reduce(self, tensor: Tensor, owner: int, name: str) -> Work:
        """Sum over all ranks into the owner's tensor; the others' is left in any state.

        Traffic a rank: the payload, but for the owner (ring: (N-1)/N of it).
        """
        if not self.active:
            return Work(None, None, name)
        n = self.world_size
        return self._run(
            name,
            tensor,
            (n - 1) / n * tensor.nbytes if self.rank == owner else tensor.nbytes,
            lambda t: dist.reduce(t, dst=owner, group=self._group_for(t), async_op=True),
        )

    def isend(self, tensor: Tensor, to: int, tag: int, name: str) -> Work:
        """Send a contiguous tensor to one rank, which receives it under the same tag.

        The tensor must not change before the Pending is done.
        """
        self.bytes_sent += tensor.nbytes
        staging = self._staging(tensor)
        group = self._group_for(staging)
        try:
            return Work(dist.isend(staging, to, group=group, tag=tag), None, name)
        except RuntimeError as error:
            raise _lost(name, error) from error

    def irecv(self, tensor: Tensor, source: int, tag: int, name: str) -> Work:
        """Overwrite a contiguous tensor with what one rank sends under a tag."""
        return self._run(
            name, tensor, 0, lambda t: dist.irecv(t, source, group=self._group_for(t), tag=tag)
        )

    def broadcast(self, tensor: Tensor, owner: int, name: str, *, control: bool = False) -> Work:
        """Overwrite all ranks' tensor with the owner's.

        control: it must not queue behind gradients.
        """
        if not self.active:
            return Work(None, None, name)
        sent = tensor.nbytes if self.rank == owner else 0
        return self._run(
            name,
            tensor,
            sent,
            lambda t: dist.broadcast(
                t,
                src=owner,
                group=self.control_group if control else self._group_for(t),
                async_op=True,
            ),
        )

    def all_gather(
        self, tensor: Tensor, name: str, *, control: bool = False
    ) -> tuple[Tensor, Work]:
        """(world, *shape): every rank's tensor, all of one shape, once the Pending is done.

        control: it must not queue behind gradients.
        """
        if not self.active:
            return tensor[None], Work(None, None, name)
        gathered = tensor.new_empty(self.world_size, *tensor.shape)
        source = tensor.contiguous()
        source = self._staging(source)
        target = gathered if source.device == gathered.device else gathered.cpu()
        self.bytes_sent += (self.world_size - 1) * tensor.nbytes
        group = self.control_group if control else self._group_for(source)
        try:
            work = dist.all_gather(list(target.unbind(0)), source, group=group, async_op=True)
        except RuntimeError as error:
            raise _lost(name, error) from error
        moved = target is not gathered
        finish = (lambda: _copy_back(gathered, target)) if moved else None
        return gathered, Work(work, finish, name)

    def all_to_all(self, tensor: Tensor, name: str) -> tuple[Tensor, Work]:
        """(world, *shape): row r is what rank r had in its row for this rank. In host memory.

        Traffic a rank: (N-1)/N of the tensor.
        """
        swapped = torch.empty_like(tensor)
        self.bytes_sent += tensor.nbytes * (self.world_size - 1) // self.world_size
        try:
            work = dist.all_to_all_single(swapped, tensor, async_op=True)
        except RuntimeError as error:
            raise _lost(name, error) from error
        return swapped, Work(work, None, name)

    def all_gather_json(self, value: object, read: Read[T]) -> list[T]:
        """Every rank's plain value, for set-up and rare events: see `yoked.ranks.exchange`."""
        if not self.active:
            return [decode(encode(value), self.rank, read)]
        try:
            return gather_json(value, read)
        except RuntimeError as error:
            raise _lost("an exchange of settings", error) from error


def _copy_back(target: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)

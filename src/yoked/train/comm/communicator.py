"""Collectives with what the training needs around them: staging, byte counts, clear errors.

Gloo takes tensors in host memory; where the model lives on a GPU and the group is Gloo (mixed
device types), payloads are staged through the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from yoked.errors import PeerLostError, YokedError
from yoked.ranks.exchange import Read, decode, encode, gather_json
from yoked.ranks.recorder import RECORDER
from yoked.ranks.spans import SPANS
from yoked.train.comm.step_clock import StepClock, WaitsFor
from yoked.train.device import staging_for

# Long enough for a rank that compiles or saves; what passes it is a fault, and is named.
COLLECTIVE_TIMEOUT_S = 600
# Tags of a message kind.
MOST_OF_A_KIND = 100_000


class MessageKind(IntEnum):
    """What a message between two ranks is of. A rank of `yoked.ranks.proof` has numbers above."""

    GRADIENT = 0
    PARAMETER = 1
    DENSE_GRADIENT = 2
    TABLE_ROWS = 3
    VOCAB_PARALLEL = 4
    REDISTRIBUTE = 5


@dataclass(frozen=True)
class Tag:
    """Tells apart messages that two ranks exchange at the same time."""

    kind: MessageKind
    index: int

    @property
    def number(self) -> int:
        """As torch has it."""
        assert 0 <= self.index < MOST_OF_A_KIND, self
        return MOST_OF_A_KIND * (self.kind + 1) + self.index


T = TypeVar("T")


class CollectiveMismatchError(YokedError):
    """A collective failed: this rank called it with tensors that do not fit the others'."""


class Work:
    """A collective in flight: torch.distributed's Work, with the copy back from host staging and
    errors that name the collective.
    """

    def __init__(
        self,
        work: Any,
        finish: Callable[[], None] | None,
        name: str,
        clock: StepClock,
        waits_for: WaitsFor = "bytes",
        peers: tuple[int, ...] = (),
    ) -> None:
        """work: torch's, or None where nothing is in flight. finish: called once it is done.
        waits_for: as what `wait` counts on the clock. peers: whose part is waited for, by their
        ranks in the run; empty: all ranks'.
        """
        self._work, self._finish, self._name = work, finish, name
        self._clock, self._waits_for, self._peers = clock, waits_for, peers

    def wait(self) -> None:
        """Block until the result is in the caller's tensor.

        Raises PeerLostError, also past the group's deadline, or CollectiveMismatchError.
        """
        with self._clock.blocked(self._waits_for):
            if self._work is not None:
                try:
                    with RECORDER.awaiting(self._name, self._peers):
                        self._work.wait()
                except RuntimeError as error:
                    raise _failed(self._name, error) from error
                self._work = None
            if self._finish is not None:
                self._finish()
                self._finish = None


def _failed(name: str, error: RuntimeError) -> YokedError:
    """torch has one kind of error for both, and tells them apart by words."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    # By ProcessGroupGloo before anything is sent, and by Gloo where sizes differ between ranks.
    if ("ProcessGroup" in said and "invalid" in said) or "mismatch" in said:
        return CollectiveMismatchError(
            f"{name} does not fit what the other ranks send: {said}",
            fix="the same version of yoked on all hosts: yoked doctor; else it is a bug",
        )
    return PeerLostError(
        f"a peer was lost in {name}: {said}",
        fix="look at the logs of the other ranks for the first failure, then go on with --resume",
    )


class Communicator:
    """The collectives of a run; with one rank, nothing happens and nothing is sent.

    The one seam to torch.distributed in training: every collective has a name, and every wait is
    on `clock`. `bytes_sent` counts what this rank has sent.

    The default process group is Gloo's. device_group: NCCL's, where every rank has a CUDA
    device; without it, tensors on a device are staged through host memory. control_group: Gloo
    with connections of its own, for messages that must not queue behind gradients.
    """

    def __init__(
        self,
        device_group: dist.ProcessGroup | None = None,
        control_group: dist.ProcessGroup | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """group: Gloo's, where it is not the default one. Ranks are numbered as it has them."""
        many = dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
        self.active, self.group = many, group
        self.rank = dist.get_rank(group) if self.active else 0
        self.world_size = dist.get_world_size(group) if self.active else 1
        self.device_group, self.control_group = device_group, control_group
        self.clock, self.bytes_sent = StepClock(), 0  # bytes: payloads, without headers

    @property
    def name(self) -> str:
        """The group's, the same on all its ranks and of no other group."""
        return "all" if self.group is None else str(self.group.group_name)

    @property
    def peers(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def global_rank(self, rank: int) -> int:
        """The rank in the run of a rank of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def all_reduce(self, tensor: Tensor, name: str) -> Work:
        """Sum in place over all ranks. Traffic a rank: 2(N-1)/N of the payload."""
        share = 2 * (self.world_size - 1) / self.world_size  # of a ring
        return self._start(
            name,
            tensor,
            share * tensor.nbytes,
            lambda t: dist.all_reduce(t, group=self._group_of(t), async_op=True),
        )

    def barrier_async(self) -> Work:
        """Done when every rank has called this: tells waiting for ranks from waiting for bytes."""
        return self._start(
            "waiting for all ranks",
            torch.zeros(1),
            2 * 4 * (self.world_size - 1) // self.world_size,
            lambda t: dist.all_reduce(t, group=self.control_group, async_op=True),
            waits_for="ranks",
        )

    def reduce(self, tensor: Tensor, dst: int, name: str) -> Work:
        """Sum over all ranks into the tensor of rank `dst`; the others' is left in any state.

        Traffic a rank: the payload, but for dst (ring: (N-1)/N of it).
        """
        share = (self.world_size - 1) / self.world_size if self.rank == dst else 1.0
        return self._start(
            name,
            tensor,
            share * tensor.nbytes,
            lambda t: dist.reduce(t, group=self._group_of(t), async_op=True, group_dst=dst),
        )

    def broadcast(self, tensor: Tensor, src: int, name: str, *, control: bool = False) -> Work:
        """Overwrite all ranks' tensor with that of rank `src`.

        control: it must not queue behind gradients.
        """
        group = self.control_group if control else self._group_of(tensor)
        return self._start(
            name,
            tensor,
            tensor.nbytes if self.rank == src else 0,
            lambda t: dist.broadcast(t, group=group, async_op=True, group_src=src),
        )

    def isend(self, tensor: Tensor, dst: int, tag: Tag, name: str) -> Work:
        """Send a contiguous tensor to one rank, which receives it under the same tag.

        The tensor must not change before the Work is done.
        """
        return self._start(
            name,
            tensor,
            tensor.nbytes,
            lambda t: dist.isend(t, None, self._group_of(t), tag.number, group_dst=dst),
            writes=False,  # nothing to copy back
            peer=dst,
        )

    def irecv(self, tensor: Tensor, src: int, tag: Tag, name: str) -> Work:
        """Overwrite a contiguous tensor with what one rank sends under a tag."""
        return self._start(
            name,
            tensor,
            0,
            lambda t: dist.irecv(t, None, self._group_of(t), tag.number, group_src=src),
            reads=False,
            peer=src,
        )

    def all_gather(self, tensor: Tensor, name: str) -> tuple[Tensor, Work]:
        """(world, *shape): every rank's tensor, all of one shape, once the Work is done.

        Traffic a rank: (N-1) times its tensor.
        """
        if not self.active:
            return tensor[None], self._nothing(name)  # (1, *shape)
        gathered = tensor.new_empty(self.world_size, *tensor.shape)
        source = self._staged(tensor.contiguous())  # held by the lambda until it is sent
        group = self._group_of(source)
        work = self._start(
            name,
            gathered,
            (self.world_size - 1) * tensor.nbytes,
            lambda t: dist.all_gather(list(t.unbind(0)), source, group=group, async_op=True),
            reads=False,
        )
        return gathered, work

    def all_to_all(self, tensor: Tensor, name: str) -> tuple[Tensor, Work]:
        """(world, *shape): row r is what rank r had in its row for this rank.

        Traffic a rank: (N-1)/N of the tensor.
        """
        swapped, source = torch.empty_like(tensor), self._staged(tensor)
        group = self._group_of(source)
        work = self._start(
            name,
            swapped,
            tensor.nbytes * (self.world_size - 1) // self.world_size,
            lambda t: dist.all_to_all_single(t, source, group=group, async_op=True),
            reads=False,
        )
        return swapped, work

    def all_gather_json(self, value: object, read: Read[T]) -> list[T]:
        """Every rank's plain value, for set-up and rare events: see `yoked.ranks.exchange`."""
        if not self.active:
            return [decode(encode(value), self.rank, read)]
        try:
            return gather_json(value, read, self.group)
        except RuntimeError as error:
            raise _failed("an exchange of settings", error) from error

    # --- staging through the host

    def staged(self, tensor: Tensor) -> Tensor:
        """Where messages to several ranks may be sent from, so that it is copied to the host once.

        The tensor itself, where a group can take it.
        """
        return self._staged(tensor) if self.active else tensor

    def _group_of(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """None: the default group."""
        return self.group if tensor.device.type == "cpu" else self.device_group

    def _staged(self, tensor: Tensor, *, reads: bool = True) -> Tensor:
        """The tensor itself where a group can take it, else one in host memory.

        reads: with the same values.
        """
        if tensor.device.type == "cpu" or self.device_group is not None:
            return tensor
        staged = staging_for(tensor.shape, tensor.dtype, tensor.device)
        return staged.copy_(tensor) if reads else staged

    def _nothing(self, name: str) -> Work:
        return Work(None, None, name, self.clock)

    def _start(
        self,
        name: str,
        tensor: Tensor,
        sent_bytes: float,
        start: Callable[[Tensor], Any],
        *,
        reads: bool = True,
        writes: bool = True,
        waits_for: WaitsFor = "bytes",
        peer: int | None = None,
    ) -> Work:
        """Start a collective in place on `tensor`, through the host if need be.

        reads, writes: whether it takes the tensor's values, and whether it leaves others there.
        peer: the one rank that it is exchanged with; None: all take part.
        """
        if not self.active:
            return self._nothing(name)
        self.bytes_sent += round(sent_bytes)  # counted where it starts: all of it will leave
        staged = self._staged(tensor, reads=reads)
        SPANS.purpose = name
        try:
            work = start(staged)
        except RuntimeError as error:
            raise _failed(name, error) from error
        finally:
            SPANS.purpose = None
        copy_back = partial(_copy, tensor, staged) if writes and staged is not tensor else None
        return Work(work, copy_back, name, self.clock, waits_for, self._in_the_run(peer))

    def _in_the_run(self, peer: int | None) -> tuple[int, ...]:
        """A rank of this group as the whole run numbers it."""
        if peer is None:
            return ()
        return (self.global_rank(peer),)


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        # Page-locked for CUDA: the host need not wait, what reads the target comes behind.
        target.copy_(source, non_blocking=target.is_cuda)

"""All that a run learns, registered once by name, each tensor with its placement over ranks.

Start, comparison, checkpoint and re-partition go through it. Everything else that a Trainer has is
made anew from it: strategies, reducers, buffers of messages. So are owners, which a resume on other
hosts computes again: a checkpoint has whole tensors, by the names of `MuonAdamW.state_dict`. What a
rank alone knows and nobody else can use, as a codec's residuals, has no placement, and is not kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.errors import WeightsApartError
from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.units import format_bytes, listed

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DIGEST_BYTES = 16  # two int64
NAME = "the run's state"


@dataclass(frozen=True)
class Replicated:
    """The same bytes on every rank."""


@dataclass(frozen=True)
class Owned:
    """On one rank alone, as ZeRO-1 has an optimizer's state."""

    rank: int


@dataclass(frozen=True)
class RowSharded:
    """Every rank has room for all rows; each has some as they are now, the others as they were.

    bounds: by rank, in order, together all rows.
    """

    bounds: tuple[slice, ...]

    @property
    def ranks(self) -> list[int]:
        """Those that have rows."""
        return [rank for rank, part in enumerate(self.bounds) if part.start < part.stop]


Placement = Replicated | Owned | RowSharded


@dataclass
class Entry:
    """A tensor. tensor: None on ranks that have none of it, which then know its shape and dtype."""

    tensor: Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    placement: Placement

    def room(self, device: torch.device) -> Tensor:
        """An empty tensor like it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class TrainState:
    """This rank's entries. What moves them is collective: all ranks call it in the same order."""

    def __init__(self, comm: Communicator, device: torch.device) -> None:
        self.comm, self.device = comm, device
        self.entries: dict[str, Entry] = {}

    def register(
        self, name: str, tensor: Tensor | None, placement: Placement, like: Tensor | None = None
    ) -> None:
        """On all ranks in the same order. like: has the shape where `tensor` is None."""
        assert name not in self.entries, name
        shaped = tensor if tensor is not None else like
        assert shaped is not None, f"{name}: no shape"
        self.entries[name] = Entry(tensor, shaped.shape, shaped.dtype, placement)

    def broadcast(
        self, say: Callable[[str], object], owned: Mapping[str, Tensor] | None, *, has_owned: bool
    ) -> None:
        """Every rank takes over rank 0's tensors.

        Random numbers and saved files are rank 0's alone: other hosts may draw or hold others. What
        all hold alike does not travel: in a new run that is mostly everything, and at 100 Mbit/s it
        would take half a minute. say: told of what does, before it sets out. owned: on rank 0, what
        it has read of other ranks' entries; has_owned: whether it has.
        """
        if self.comm.active:
            tensors = [e.tensor for e in self.entries.values() if e.tensor is not None
                       and not isinstance(e.placement, Owned)]  # fmt: skip
            if tensors and self.comm.device_group is None:
                tensors = self._unlike(tensors)
                if tensors:
                    size_bytes = sum(tensor.nbytes for tensor in tensors)
                    sent = format_bytes(size_bytes)
                    say(f"sending {sent} of weights and optimizer state to all ranks")
            # Matrices are views of one buffer; contiguous views travel in place.
            _wait_all([self.comm.broadcast(tensor, 0, NAME) for tensor in tensors])
        if has_owned:
            _wait_all(list(self._send_owned(owned)))

    def _unlike(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of which some rank holds another one than rank 0; the same ones on all ranks."""
        mine = torch.stack([fingerprint(tensor) for tensor in tensors])  # (tensors, 2)
        by_rank, work = self.comm.all_gather(mine, "comparing the first weights")
        work.wait()
        # by_rank: (N, tensors, 2).
        unlike = (by_rank != by_rank[0]).any(dim=2).any(dim=0).tolist()
        return [tensor for tensor, differs in zip(tensors, unlike, strict=True) if differs]

    def _send_owned(self, owned: Mapping[str, Tensor] | None) -> Iterator[Work]:
        for number, (name, entry) in enumerate(self.entries.items()):
            if not isinstance(entry.placement, Owned):
                continue
            if owned is not None and entry.tensor is not None:
                entry.tensor.copy_(owned[name])  # what rank 0 owns itself
            read = None if owned is None else owned[name].to(self.device)
            yield from self._move(number, entry, read, 0, entry.placement.rank, into=entry.tensor)

    def gather(self) -> dict[str, Tensor] | None:
        """All tensors whole on rank 0, None on the others.

        Traffic: what rank 0 lacks, once.
        """
        found: dict[str, Tensor] = {}
        works: list[Work] = []
        for number, (name, entry) in enumerate(self.entries.items()):
            match entry.placement:
                case Owned(owner):
                    into = None
                    if self.comm.rank == 0 and owner != 0:
                        into = entry.room(self.device)
                    works += self._move(number, entry, entry.tensor, owner, 0, into=into)
                    whole = into if into is not None else entry.tensor
                case RowSharded() as rows:
                    whole = entry.tensor
                    works += self._gather_rows(number, entry, rows)
                case Replicated():
                    whole = entry.tensor
            if self.comm.rank == 0:
                assert whole is not None, name
                found[name] = whole
        _wait_all(works)
        return found if self.comm.rank == 0 else None

    def _gather_rows(self, number: int, entry: Entry, placement: RowSharded) -> list[Work]:
        assert entry.tensor is not None, "every rank has room for all rows"
        tag = Tag(MessageKind.REDISTRIBUTE, number)
        if self.comm.rank != 0:
            mine = placement.bounds[self.comm.rank]
            empty = mine.start >= mine.stop
            return [] if empty else [self.comm.isend(entry.tensor[mine], 0, tag, NAME)]
        return [
            self.comm.irecv(entry.tensor[placement.bounds[rank]], rank, tag, NAME)
            for rank in placement.ranks
            if rank != 0
        ]

    def _move(
        self, number: int, entry: Entry, tensor: Tensor | None, src: int, dst: int, *,
        into: Tensor | None,
    ) -> list[Work]:  # fmt: skip
        """From one rank to another. tensor: on src; into: on dst."""
        if src == dst:
            return []
        if self.comm.device_group is not None:
            # NCCL pairs messages by their order alone.
            here = {src: tensor, dst: into}.get(self.comm.rank)
            buffer = entry.room(self.device) if here is None else here
            return [self.comm.broadcast(buffer, src, NAME)]
        tag = Tag(MessageKind.REDISTRIBUTE, number)
        if self.comm.rank == src:
            assert tensor is not None
            return [self.comm.isend(tensor.contiguous(), dst, tag, NAME)]
        if self.comm.rank == dst:
            assert into is not None
            return [self.comm.irecv(into, src, tag, NAME)]
        return []

    def redistribute(self, names: Sequence[str], placement: RowSharded) -> None:
        """Give rows to other ranks: what changes its rank travels once."""
        works: list[Work] = []
        for number, name in enumerate(names):
            entry = self.entries[name]
            before = entry.placement
            entry.placement = placement
            if not isinstance(before, RowSharded) or before == placement:
                continue  # replicated, every rank has all of it as it is
            assert entry.tensor is not None, name
            tag = Tag(MessageKind.REDISTRIBUTE, number)
            for src, had in enumerate(before.bounds):
                for dst, has in enumerate(placement.bounds):
                    # What src had and dst has from now on.
                    rows = slice(max(had.start, has.start), min(had.stop, has.stop))
                    if src == dst or rows.start >= rows.stop:
                        continue
                    if self.comm.rank == src:
                        works.append(self.comm.isend(entry.tensor[rows], dst, tag, NAME))
                    elif self.comm.rank == dst:
                        works.append(self.comm.irecv(entry.tensor[rows], src, tag, NAME))
        _wait_all(works)

    def all_gather(self, name: str) -> None:
        """Until every rank has all rows of a sharded tensor as they are now."""
        entry = self.entries[name]
        if isinstance(entry.placement, RowSharded):
            assert entry.tensor is not None, name
            all_gather_rows(self.comm, entry.tensor, entry.placement)

    def require_equal(self, names: Sequence[str], step: int) -> None:
        """Raise WeightsApartError, naming rank and tensor, unless all ranks hold the same replicas.

        names: of tensors; those that are not replicated are left out. Traffic a rank: 8 bytes each.
        """
        if not self.comm.active:
            return
        names = [n for n in names if isinstance(self.entries[n].placement, Replicated)]
        tensors = [self.entries[name].tensor for name in names]
        mine = torch.tensor([checksum(t) for t in tensors if t is not None], dtype=torch.int64)
        gathered, work = self.comm.all_gather(mine, "comparing weights")
        work.wait()
        by_rank = [tuple(row) for row in gathered.tolist()]
        if len(set(by_rank)) == 1:
            return
        (common, most), second = Counter(by_rank).most_common(2)
        odd = [rank for rank, sums in enumerate(by_rank) if sums != common]
        first = next(i for i in range(len(names)) if by_rank[odd[0]][i] != common[i])
        suspect = "that host's memory"
        if tied := most == second[1]:
            odd, suspect = list(range(self.comm.world_size)), "the memory of these hosts"
        ranks = [self.comm.global_rank(rank) for rank in odd]
        many = f"rank{'s' * (len(ranks) > 1)} {listed(map(str, ranks))}"
        held = f"hold{'s' * (len(ranks) == 1)} other weights than the others"
        if tied:
            held = "hold unlike weights, and none has a majority"
        problem = WeightsApartError(
            f"after step {step}, {many} {held}, first in {names[first]}: ranks have stopped "
            "learning the same thing",
            fix=f"go on from the last checkpoint with --resume; if it comes back, test {suspect}",
        )
        problem.of_ranks = tuple(ranks)
        raise problem


def all_gather_rows(comm: Communicator, whole: Tensor, placement: RowSharded) -> None:
    """Overwrite each part of a tensor, on all ranks, with that of the rank whose part it is."""
    parts = [(rank, whole[placement.bounds[rank]]) for rank in placement.ranks]
    _wait_all([comm.broadcast(part, rank, NAME) for rank, part in parts])


def checksum(tensor: Tensor) -> int:
    """The sum of a tensor's bit patterns: any one difference changes it. Reads it once."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))  # it may wrap around: one difference still shows


def fingerprint(tensor: Tensor) -> Tensor:
    """(2,) int64: BLAKE2b of a tensor's bits."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(content.numpy().data, digest_size=_DIGEST_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64)  # torch warns of read-only bytes


def _wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()

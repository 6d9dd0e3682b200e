"""Which rank has which rows of the lm_head as they are now, where not every rank has all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import HEAD

WHAT = "the lm_head's rows of another rank"


class VocabPartition:
    """The rows of each rank. It has their weight and AdamW's moments as they are now, of the others
    as they were: whoever reads them whole calls `settle` first.
    """

    def __init__(self, comm: Communicator, optimizer: MuonAdamW, parts: Sequence[slice]) -> None:
        """parts: by rank, in order, together all rows."""
        self._comm, self._optimizer, self._buffers = comm, optimizer, optimizer.buffers
        self.parts = list(parts)
        self._buffers.head_rows = self.mine
        self._is_whole = True

    @property
    def mine(self) -> slice:
        """The rows of this rank."""
        return self.parts[self._comm.rank]

    @property
    def workers(self) -> list[int]:
        """Ranks that have a part."""
        return [rank for rank, part in enumerate(self.parts) if part.start < part.stop]

    def changes(self) -> None:
        """A step begins, which gives each rank new values of its part."""
        self._is_whole = False

    def settle(self, *, moments: bool = False) -> None:
        """Until all ranks hold the whole weight as it is now. Collective.

        moments: AdamW's, too.
        """
        if not self._is_whole:
            self.complete(self._buffers.parameters[HEAD].data)
            self._is_whole = True
        for whole in self._optimizer.head_moments if moments else ():
            self.complete(whole)

    def complete(self, whole_VC: Tensor) -> None:
        """Overwrite each part of a tensor, on all ranks, with that of the rank whose part it is."""
        sent = [
            self._comm.broadcast(whole_VC[self.parts[worker]], worker, WHAT)
            for worker in self.workers
        ]
        for pending in sent:
            pending.wait()

    def move(self, parts: Sequence[slice]) -> None:
        """Take over other parts: what changes its rank travels, weight and moments. Collective."""
        if list(parts) == self.parts:
            return
        weight = self._buffers.parameters[HEAD].data
        pending: list[Work] = []
        for source, before in enumerate(self.parts):
            for to, after in enumerate(parts):
                rows = slice(max(before.start, after.start), min(before.stop, after.stop))
                if source == to or rows.start >= rows.stop:
                    continue
                for number, whole in enumerate((weight, *self._optimizer.head_moments)):
                    tag = Tag(MessageKind.REDISTRIBUTE, number)
                    if self._comm.rank == source:
                        pending.append(self._comm.isend(whole[rows], to, tag, WHAT))
                    elif self._comm.rank == to:
                        pending.append(self._comm.irecv(whole[rows], source, tag, WHAT))
        for each in pending:
            each.wait()
        self.parts = list(parts)
        self._buffers.head_rows = self.mine

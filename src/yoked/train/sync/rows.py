"""The embedding tables' gradients: the rows that a step touches, summed over ranks.

In four messages: of the micro-batches whose backward passes wait for nothing, two of those that are
deferred behind the lm_head (`yoked.timeline.deferral`), and of the last one. Each leaves when it is
complete, and only the last has to be waited for. Every rank knows the rows of all others from the
sample stream, so no indices are sent.

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from yoked.timeline.deferral import part_batches
from yoked.train.model.row_grads import RowGrads
from yoked.train.sync.gathering import Gathering
from yoked.train.sync.wire import ROWS_TAG, Wire

WHAT = "table gradients"
MESSAGES = 4


@dataclass
class _Part:
    """One message. rows_by_rank: (U,) int64, sorted; mine: this rank's gradients of its own.

    gathering: None where no rank has anything to send.
    """

    rows_by_rank: list[Tensor]
    mine: RowGrads
    gathering: Gathering | None


class RowSum:
    """Sums the tables' gradients step by step; collective: all ranks call in the same order.

    widths: of the tables, by name; dtype: that in which rows travel; None: their own.
    """

    def __init__(
        self,
        wire: Wire,
        widths: dict[str, int],
        vocab_size: int,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.wire, self.widths, self.vocab_size = wire, widths, vocab_size
        self.dtype, self.device = dtype, device
        # (U,) int64, sorted: rows that some rank looks up in this step.
        self.used_rows = self._distinct(())
        self._parts: list[_Part] = []
        self._sent = 0

    def begin(
        self, ids_by_rank: Sequence[Sequence[Tensor]], deferred: Sequence[int]
    ) -> list[RowGrads]:
        """Start a step; ids_by_rank: the input ids, any shape, of each rank's micro-batches.

        deferred: by rank, how many of them are (`deferred_backwards`). Returns where the gradients
        of each of this rank's micro-batches go.
        """
        messages = [list(ids_by_rank)]
        if self.wire.active:
            parted = [
                _by_message(batches, count)
                for batches, count in zip(ids_by_rank, deferred, strict=True)
            ]
            messages = [[parts[n] for parts in parted] for n in range(MESSAGES)]
        self._parts = [self._part(ids, ROWS_TAG + n) for n, ids in enumerate(messages)]
        self._sent = 0
        every = [rows for part in self._parts for rows in part.rows_by_rank]
        self.used_rows = torch.unique(torch.cat(every))
        return [
            part.mine
            for part, ids in zip(self._parts, messages, strict=True)
            for _ in ids[self.wire.rank]
        ]

    def _part(self, ids_by_rank: Sequence[Sequence[Tensor]], tag: int) -> _Part:
        rows = [self._distinct(batches) for batches in ids_by_rank]
        mine = RowGrads(rows[self.wire.rank], self.widths, self.vocab_size)
        numels = [len(each) * sum(self.widths.values()) for each in rows]
        dtype = self.dtype or mine.flat.dtype
        gathering = Gathering(self.wire, numels, dtype, tag, WHAT) if any(numels) else None
        return _Part(rows, mine, gathering)

    def _distinct(self, batches: Sequence[Tensor]) -> Tensor:
        if not batches:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        found: Tensor = torch.unique(torch.cat([ids.flatten() for ids in batches]))
        return found

    def send(self) -> None:
        """The next of the messages is complete on this rank."""
        part = self._parts[self._sent]
        self._sent += 1
        if part.gathering is not None:
            part.gathering.send(part.mine.flat)

    def alone(self) -> RowGrads:
        """The gradients of a rank without others."""
        (part,) = self._parts
        return part.mine

    def sum(self) -> RowGrads:
        """Wait, and return the sum over ranks, the same bytes on all of them."""
        total = RowGrads(self.used_rows, self.widths, self.vocab_size)
        for part in self._parts:
            if part.gathering is None:
                continue
            # In the order of ranks, so that all ranks round alike.
            for rows, flat in zip(part.rows_by_rank, part.gathering.wait(), strict=True):
                if len(rows):
                    total.add_rows(rows, flat.to(total.flat))
        self._parts = []
        return total


def _by_message(batches: Sequence[Tensor], deferred: int) -> list[Sequence[Tensor]]:
    """A rank's micro-batches by the message that their rows go with."""
    early, (first, second), last = part_batches(len(batches), deferred)
    edges = accumulate((early, first, second, last), initial=0)
    return [batches[begin:end] for begin, end in pairwise(edges)]

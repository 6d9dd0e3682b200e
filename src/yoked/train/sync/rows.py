"""The embedding tables' gradients: the rows that a step touches, summed over ranks.

In two messages: what all micro-batches but the last make of them leaves before that one begins,
and crosses the wire behind it; only the last one's rows have to be waited for. Every rank knows
the rows of all others from the sample stream, so no indices are sent.

Shape legend: U rows of a rank, E sum of the tables' widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.sync.gathering import Gathering
from yoked.train.sync.wire import ROWS_TAG, Wire
from yoked.train.tables import RowGradients

WHAT = "table gradients"


@dataclass
class _Part:
    """One message. rows_by_rank: (U,) int64, sorted; mine: this rank's gradients of its own.

    numel: longest U * E, of each rank's message: ranks with fewer rows fill it up.
    """

    rows_by_rank: list[Tensor]
    mine: RowGradients
    numel: int
    gathering: Gathering


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

    def begin(self, ids_by_rank: Sequence[Sequence[Tensor]]) -> None:
        """Start a step; ids_by_rank: the input ids, any shape, of each rank's micro-batches."""
        early = [batches[:-1] for batches in ids_by_rank]
        last = [batches[-1:] for batches in ids_by_rank]
        several = self.wire.active and any(early)
        messages = [early, last] if several else [ids_by_rank]
        self._parts = [self._part(ids, ROWS_TAG + n) for n, ids in enumerate(messages)]
        self._sent = 0
        every = [rows for part in self._parts for rows in part.rows_by_rank]
        self.used_rows = torch.unique(torch.cat(every))

    def _part(self, ids_by_rank: Sequence[Sequence[Tensor]], tag: int) -> _Part:
        rows = [self._distinct(batches) for batches in ids_by_rank]
        mine = RowGradients(rows[self.wire.rank], self.widths, self.vocab_size)
        numel = max(map(len, rows)) * sum(self.widths.values())
        dtype = self.dtype or mine.flat.dtype
        return _Part(rows, mine, numel, Gathering(self.wire, numel, dtype, tag, WHAT))

    def _distinct(self, batches: Sequence[Tensor]) -> Tensor:
        if not batches:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        found: Tensor = torch.unique(torch.cat([ids.flatten() for ids in batches]))
        return found

    @property
    def mine(self) -> RowGradients:
        """Where this rank's gradients go."""
        return self._parts[self._sent].mine

    def before_last_batch(self) -> None:
        """The last micro-batch begins: send what the others made, if there were any."""
        if len(self._parts) > 1:
            self._send()

    def ready(self) -> None:
        """All of this rank's gradients are complete: send what is left."""
        self._send()

    def _send(self) -> None:
        part = self._parts[self._sent]
        self._sent += 1
        padded = part.mine.flat.new_zeros(part.numel, dtype=self.dtype)
        padded[: part.mine.flat.numel()] = part.mine.flat
        part.gathering.send(padded)

    def sum(self) -> RowGradients:
        """Wait, and return the sum over ranks, the same bytes on all of them."""
        total = RowGradients(self.used_rows, self.widths, self.vocab_size)
        width = sum(self.widths.values())
        for part in self._parts:
            # In the order of ranks, so that all ranks round alike.
            for rows, flat in zip(part.rows_by_rank, part.gathering.wait(), strict=True):
                if len(rows):
                    total.add_rows(rows, flat[: len(rows) * width].to(total.flat))
        self._parts = []
        return total

"""An all-gather by messages whose receives are posted before anything is sent.

Gloo's own all_gather begins when a rank has called it, in a thread that copies what comes twice.
A receive that is posted at the step's beginning takes bytes as they arrive, straight into its
buffer, while this rank still computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from yoked.train.sync.wire import Pending, Wire


class Gathering:
    """One tensor of every rank on its way to all others, all of one size and dtype.

    tag: the same on all ranks, and of no other message between them at the time. Traffic a rank:
    (N-1) tensors; without a process group nothing is expected. Where all tensors are on NCCL's
    devices it is NCCL's all-gather, started by `send`.
    """

    def __init__(self, wire: Wire, numel: int, dtype: torch.dtype, tag: int, what: str) -> None:
        self.wire, self.tag, self.what = wire, tag, what
        self._rows: dict[int, Tensor] = {}
        self._pending: list[Pending] = []
        if wire.active and wire.device_group is None:
            for source in wire.others:
                buffer = torch.empty(numel, dtype=dtype)
                self._rows[source] = buffer
                self._pending.append(wire.receive(buffer, source, tag, what))

    def send(self, tensor: Tensor) -> None:
        """This rank's, (numel,) contiguous; it must not change before `wait` has returned."""
        if self.wire.device_group is not None:
            gathered, pending = self.wire.gather_all(tensor, self.what)
            self._rows = dict(enumerate(gathered))
            self._pending = [pending]
            return
        self._rows[self.wire.rank] = tensor
        self._pending += [
            self.wire.send(tensor, to, self.tag, self.what) for to in self.wire.others
        ]

    def wait(self) -> list[Tensor]:
        """All ranks' tensors in their order, others' in host memory unless NCCL carried them."""
        for pending in self._pending:
            pending.wait()
        return [self._rows[rank] for rank in range(self.wire.world_size)]

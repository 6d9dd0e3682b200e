"""An all-gather by messages whose receives are posted before anything is sent.

Gloo's own all_gather begins when a rank has called it, in a thread that copies what comes twice.
A receive that is posted at the step's beginning takes bytes as they arrive, straight into its
buffer, while this rank still computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, Tag, Work


class RaggedGather:
    """One tensor of every rank on its way to all others, all of one dtype.

    numels: of each rank's; of none, nothing travels. tag: the same on all ranks, and of no other
    message between them at the time. Traffic a rank: (N-1) times its tensor; without a process
    group nothing is expected. Where all tensors are on NCCL's devices it is NCCL's all-gather of
    tensors filled up to the longest, started by `send`.
    """

    def __init__(
        self, comm: Communicator, numels: Sequence[int], dtype: torch.dtype, tag: Tag, what: str
    ) -> None:
        self.comm, self.numels, self.tag, self.what = comm, list(numels), tag, what
        self._dtype = dtype
        self._rows: dict[int, Tensor] = {}
        self._pending: list[Work] = []
        if comm.active and comm.device_group is None:
            for source in comm.peers:
                buffer = torch.empty(self.numels[source], dtype=dtype)
                self._rows[source] = buffer
                if len(buffer):
                    self._pending.append(comm.irecv(buffer, source, tag, what))

    def send(self, tensor: Tensor) -> None:
        """This rank's, contiguous, in any dtype; it must not change before `wait` has returned."""
        if self.comm.device_group is not None:
            filled = tensor.new_zeros(max(self.numels), dtype=self._dtype)
            filled[: len(tensor)] = tensor
            gathered, pending = self.comm.all_gather(filled, self.what)
            self._rows = {
                rank: row[:numel]
                for rank, (row, numel) in enumerate(zip(gathered, self.numels, strict=True))
            }
            self._pending = [pending]
            return
        # Rounded here too: all ranks add the same numbers.
        own = self.comm.staged(tensor.to(self._dtype))
        self._rows[self.comm.rank] = own
        if len(own):  # nobody has posted a receive for an empty tensor
            self._pending += [
                self.comm.isend(own, to, self.tag, self.what) for to in self.comm.peers
            ]

    def wait(self) -> list[Tensor]:
        """All ranks' tensors in their order, others' in host memory unless NCCL carried them."""
        for pending in self._pending:
            pending.wait()
        return [self._rows[rank] for rank in range(self.comm.world_size)]

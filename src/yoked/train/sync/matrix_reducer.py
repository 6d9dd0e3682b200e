"""The layers' matrices: gradients go to their owners, what the owners made of them to all.

An update of Muon contains matrix products, which unlike CPUs round differently, so one rank
computes it and all take over the same bytes. Both ways together carry as much as an all-reduce.

    owner     posts its receives   adds what came   Muon, stack by stack   sends each stack
    others    send each gradient when backward has made it                 receive, apply

In a lossy payload dtype gradients travel encoded, and what the rounding lost is added to the
next step's (error feedback, Seide et al. 2014). The owners then send encoded updates, which
they apply as decoded themselves, so that all weights stay equal to the bit.

Traffic a rank: (N-1)/N of the matrices each way where owners have equal parts. An owner sends
N-1 copies of its own part, and a rank that owns nothing sends no matrices.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from yoked.train.comm.communicator import Communicator, MessageKind, Tag, Work
from yoked.train.optim.param_buffers import Bucket, ParamBuffers, Update
from yoked.train.sync.codecs import Codec, encoded


class MatrixReducer:
    """Carries one model's matrices step by step. codec: None sends float32 as it is."""

    def __init__(self, comm: Communicator, buffers: ParamBuffers, codec: Codec | None) -> None:
        self.comm, self.buffers, self.codec = comm, buffers, codec
        self._buckets = {name: bucket for bucket in buffers.buckets for name in bucket.names}
        # Buckets are the same on all ranks, and with them these numbers.
        self._tags = {
            name: Tag(MessageKind.GRADIENT, number) for number, name in enumerate(self._buckets)
        }
        self.own = [bucket for bucket in buffers.buckets if bucket.owner == comm.rank]
        self.sends_differences = lossy = codec is not None and comm.active
        there = buffers.matrices.device
        self._device = there if codec is None else codec.works_on(there)  # where it encodes
        # What this rank has yet to make good: of gradients that it sends, of updates that it owns.
        # One tensor for both: an owner sends no gradient, the others no update.
        self._residual = torch.zeros_like(buffers.matrices, device=self._device) if lossy else None
        self._incoming: dict[str, list[tuple[Tensor, Work]]] = {}
        self._leaving: list[Work] = []
        self._sharing: list[Work] = []
        self._updates: list[tuple[Bucket, Tensor, Work]] = []

    @property
    def names(self) -> list[str]:
        """The matrices in the order in which every rank sends them: the last layer's first."""
        return list(reversed([n for n in self.buffers.parameters if n in self._buckets]))

    def post_receives(self) -> None:
        """Post the receives of this rank's own matrices, so that they flow while it computes."""
        for name, bucket in self._buckets.items():
            if bucket.owner == self.comm.rank:
                self._incoming[name] = [self._receive(name, source) for source in self.comm.peers]

    def _receive(self, name: str, source: int) -> tuple[Tensor, Work]:
        # Not into the gradient itself, to which backward still adds.
        buffer = self._room(self.buffers.gradient(name))
        about = f"the gradient of {name}"
        return buffer, self.comm.irecv(buffer, source, self._tags[name], about)

    def reduce_grad(self, name: str) -> None:
        """This rank's gradient of a matrix is complete: send it to its owner."""
        owner = self._buckets[name].owner
        if owner == self.comm.rank:
            return
        gradient = self.buffers.gradient(name).view(-1)
        exact = self.codec is None
        payload = self._payload(gradient) if exact else self._encode(gradient, self._part(name))
        about = f"the gradient of {name}"
        self._leaving.append(self.comm.isend(payload, owner, self._tags[name], about))

    def wait_reduced(self, bucket: Bucket) -> None:
        """Add what the others sent to the gradients of a stack of this rank's, in their order."""
        for name in bucket.names:
            gradient = self.buffers.gradient(name).view(-1)
            self._add(self._incoming.pop(name, ()), gradient)

    def _add(self, incoming: Iterable[tuple[Tensor, Work]], gradient: Tensor) -> None:
        # By rank: added in the order of arrival, a run would not repeat to the bit.
        for buffer, pending in incoming:
            pending.wait()
            if self.codec is None:
                gradient += buffer
            else:
                self._add_decoded(buffer, gradient)

    def wait_sent(self) -> None:
        """Wait until this rank's gradients have left: then they may change."""
        wait_all(self._leaving)

    def post_parameter_receives(self) -> None:
        """Post the receives of the others' new matrices, exact ones straight into the weights.

        This rank's own may change from now on, so the last ones have left.
        """
        self._post_parameter_receives(self.buffers.matrices)

    def _post_parameter_receives(self, flat: Tensor) -> None:
        """flat: like all matrices; exact ones arrive there."""
        wait_all(self._sharing)
        for number, bucket in enumerate(self.buffers.buckets):
            if bucket.owner != self.comm.rank:
                matrices = bucket.view(flat).view(-1)
                buffer = matrices if self.codec is None else self._room(matrices)
                tag = Tag(MessageKind.PARAMETER, number)
                pending = self.comm.irecv(buffer, bucket.owner, tag, "new matrices")
                self._updates.append((bucket, buffer, pending))

    def publish(self, due: Update, before: Tensor | None) -> None:
        """Send a stack that this rank has updated to all others. before: as it was, where
        differences are sent.
        """
        bucket, matrices = due.bucket, due.matrices.view(-1)
        payload = matrices
        if before is not None:
            before = before.view(-1)
            assert self._residual is not None
            lost = self._residual[bucket.offset : bucket.offset + bucket.numel]
            # The rounding error is relative to what is encoded: an update, not the weights.
            payload = self._encode(matrices - before, lost)
            # As on all other ranks: what is decoded is added to the old matrices.
            matrices.copy_(before)
            self._add_decoded(payload, matrices)
        tag = Tag(MessageKind.PARAMETER, self.buffers.buckets.index(bucket))
        payload = self.comm.staged(payload)
        for rank in self.comm.peers:
            self._sharing.append(self.comm.isend(payload, rank, tag, "new matrices"))

    def publish_all(self) -> None:
        """All of this rank's own stacks are updated."""

    def wait_parameters(self) -> None:
        """Wait until this rank has everybody's new matrices."""
        updates, self._updates = self._updates, []
        for bucket, buffer, pending in updates:
            pending.wait()
            if self.codec is not None:
                self._add_decoded(buffer, bucket.view(self.buffers.matrices).view(-1))

    def drain(self) -> None:
        """The same, and until its own have left: all may change."""
        self.wait_parameters()
        wait_all(self._sharing)

    # --- payloads

    def _payload(self, gradient: Tensor) -> Tensor:
        """An exact gradient leaves as it is, so it must not change before `wait_sent`."""
        return gradient

    def _room(self, like: Tensor) -> Tensor:
        if self.codec is None:
            return torch.empty_like(like).view(-1)
        encoded_bytes = self.codec.encoded_bytes(like.numel())
        return torch.empty(encoded_bytes, dtype=torch.uint8, device=self._device)

    def _part(self, name: str) -> Tensor:
        """What is still lost of a matrix."""
        assert self._residual is not None
        bucket = self._buckets[name]
        size = bucket.shape[0] * bucket.shape[1]
        start = bucket.offset + bucket.names.index(name) * size
        return self._residual[start : start + size]

    def _encode(self, values: Tensor, lost: Tensor) -> Tensor:
        assert self.codec is not None
        return encoded(self.codec, values.to(self._device), lost)

    def _add_decoded(self, payload: Tensor, out: Tensor) -> None:
        assert self.codec is not None
        if out.device == self._device:
            self.codec.decode(payload, out, add=True)
            return
        values = torch.empty(out.shape)  # the codec works in host memory
        self.codec.decode(payload, values)
        out.add_(values.to(out.device))


def wait_all(pendings: list[Work]) -> None:
    """Wait for all of them, and forget them."""
    for pending in pendings:
        pending.wait()
    pendings.clear()


class CollectiveReducer(MatrixReducer):
    """The same in float32 by reduce and broadcast: NCCL pairs messages by their order."""

    def __init__(self, comm: Communicator, buffers: ParamBuffers) -> None:
        super().__init__(comm, buffers, None)
        self._reducing: dict[Bucket, Work] = {}

    def post_receives(self) -> None:
        """Nothing: a reduction starts on all ranks alike."""

    def reduce_grad(self, name: str) -> None:
        """Nothing until all matrices are ready: NCCL is fast, and few messages suit it."""

    def post_parameter_receives(self) -> None:
        """All gradients of this rank are complete: reduce them."""
        for bucket in self.buffers.buckets:
            gradients = bucket.view(self.buffers.matrix_grads)  # (K, R, C)
            self._reducing[bucket] = self.comm.reduce(gradients, bucket.owner, "matrix gradients")

    def wait_reduced(self, bucket: Bucket) -> None:
        """Wait for the sum of a stack of this rank's."""
        self._reducing.pop(bucket).wait()

    def wait_sent(self) -> None:
        """Wait until this rank's gradients have left: then they may change."""
        # Those of other owners: `wait_reduced` has taken this rank's own.
        wait_all([self._reducing.pop(bucket) for bucket in list(self._reducing)])

    def publish(self, due: Update, before: Tensor | None) -> None:
        """Nothing until all owners are done."""

    def publish_all(self) -> None:
        """All owners have updated their own: send them, in one order."""
        for bucket in self.buffers.buckets:
            matrices = bucket.view(self.buffers.matrices)
            self._sharing.append(self.comm.broadcast(matrices, bucket.owner, "new matrices"))

    def wait_parameters(self) -> None:
        """Wait until this rank has everybody's new matrices, which come as its own go."""
        wait_all(self._sharing)

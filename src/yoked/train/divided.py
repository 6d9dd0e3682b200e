"""The lm_head by parts of its vocabulary: each rank's part, for the tokens of all ranks.

When it is done so, and what for, says `yoked.timeline.division`. Parts are as large as what ranks
compute, and move so.

Traffic of a rank with n of a step's T tokens, in numbers: hidden states n * C to each other rank,
the gradient of theirs (T - n) * C, and 2 T sums to each.

Shape legend: T tokens of the step, n of one rank, R of a chunk, C n_embd, V padded vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from yoked.timeline.division import GRAIN_IDS
from yoked.train.headparts import HeadParts
from yoked.train.model.cross_entropy import Chunk, FusedLinearCrossEntropy, LossAndGrads, token_nats
from yoked.train.model.precision import wide, widen
from yoked.train.optim.layout import HEAD
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.shares import consecutive, split_rows
from yoked.train.sync.sync import SyncTimes
from yoked.train.sync.wire import DIVIDED_TAG, Pending, Wire

WHAT = "the divided lm_head"
HIDDEN_TAG, SUMS_TAG, GRADIENT_TAG = range(DIVIDED_TAG, DIVIDED_TAG + 3)
# Tokens that go through a part at once.
CHUNK_TOKENS = 1024


def divide(vocab: int, work: Sequence[float]) -> list[slice]:
    """Each rank's rows of the weight, in proportion to its work; vocab: V."""
    assert vocab % GRAIN_IDS == 0, vocab
    groups = split_rows(vocab // GRAIN_IDS, work)
    return [slice(GRAIN_IDS * each.start, GRAIN_IDS * each.stop) for each in groups]


@dataclass
class _Arrivals:
    """What others send this rank in a step, by rank: hidden states (n, C) of their tokens, sums
    (2, T) of their parts, and the gradient (n, C) that their parts give this rank's tokens.
    """

    hidden: dict[int, tuple[Tensor, Pending]] = field(default_factory=dict)
    sums: dict[int, tuple[Tensor, Pending]] = field(default_factory=dict)
    gradient: dict[int, tuple[Tensor, Pending]] = field(default_factory=dict)


class DividedHead:
    """This rank's part, and the exchange with the others; collective in all that it does.

    tokens: of a step, by rank, as the run starts.
    """

    def __init__(
        self, wire: Wire, optimizer: MuonAdamW, head: FusedLinearCrossEntropy, tokens: Sequence[int]
    ) -> None:
        self.wire, self._layout = wire, optimizer.layout
        # One for each chunk of a step: the blocks of all of them are kept.
        self._heads = [head]
        self._work: Sequence[int] = tokens
        self.parts = HeadParts(wire, optimizer, divide(len(self._layout.head_grad), tokens))
        self._leaving: list[Pending] = []
        self._targets: Sequence[Tensor] = ()
        # By rank, its tokens among all T.
        self._places: list[slice] = []
        self._arriving = _Arrivals()
        self._times = SyncTimes()

    @property
    def extra_tokens(self) -> int:
        """That this rank's part is more work than its own tokens; below zero: less."""
        tokens = [len(targets) for targets in self._targets]
        rows: int = self.parts.mine.stop - self.parts.mine.start
        part = rows / len(self._layout.head_grad)
        return round(sum(tokens) * part) - tokens[self.wire.rank]

    def share(self, work: Sequence[int]) -> None:
        """From the next step on, parts in proportion to what ranks are to do, in tokens."""
        self._work = work

    # --- a step, in this order

    def begin(
        self, targets_by_rank: Sequence[Tensor], dtype: torch.dtype, times: SyncTimes
    ) -> None:
        """Take over parts that have moved, and post what will be received.

        targets_by_rank: (n,) int64 of each rank; dtype: of hidden states; times: what is waited for
        is added there.
        """
        for pending in self._leaving:
            pending.wait()
        self._leaving, self._targets, self._times = [], targets_by_rank, times
        self.parts.move(divide(len(self._layout.head_grad), self._work), times)
        rank, width = self.wire.rank, self._layout.head_grad.size(1)
        tokens = [len(targets) for targets in targets_by_rank]
        self._places = [slice(part.start, part.stop) for part in consecutive(tokens)]
        hidden = torch.empty(sum(tokens), width, dtype=dtype)
        self._arriving = found = _Arrivals()
        for other in self.wire.others:
            if rank in self.parts.workers and tokens[other]:
                place = self._places[other]
                found.hidden[other] = self._receive(hidden[place], other, HIDDEN_TAG)
            if other in self.parts.workers and (rank in self.parts.workers or tokens[rank]):
                sums = torch.empty(2, sum(tokens), dtype=wide(dtype))
                found.sums[other] = self._receive(sums, other, SUMS_TAG)
            if other in self.parts.workers and tokens[rank]:
                gradient = torch.empty(tokens[rank], width, dtype=dtype)
                found.gradient[other] = self._receive(gradient, other, GRADIENT_TAG)

    def loss(self, hidden_nC: Tensor, grad_scale: float) -> LossAndGrads:
        """Nats of this rank's tokens, and the gradient of their hidden states; that of the weight's
        part is added to the layout's. grad_scale: as for `FusedLinearCrossEntropy.loss`.
        """
        self.parts.changes()
        rank, tokens = self.wire.rank, [len(targets) for targets in self._targets]
        if tokens[rank]:
            for worker in self.parts.workers:
                self._send(hidden_nC.contiguous(), worker, HIDDEN_TAG)
        chunks = list(self._through_part(hidden_nC))
        sums_2T = self._whole_sums(chunks, hidden_nC.dtype)
        for place, chunk in chunks:
            chunk.exp_sum, chunk.target_logit = sums_2T[:, place]
        gradient_TC = self._gradients(chunks, sum(tokens), hidden_nC, grad_scale)
        weight_grad = self._layout.head_grad[self.parts.mine]
        for _, chunk in chunks:
            chunk.weight_gradient(grad_scale, weight_grad)
        own = self._places[rank]
        gradient = self._own_gradient(gradient_TC[own])
        nats = token_nats(sums_2T[0, own], sums_2T[1, own], self._targets[rank])
        return LossAndGrads(nats.cpu().double().sum(), nats, gradient.to(hidden_nC.dtype))

    def _through_part(self, hidden_nC: Tensor) -> Iterator[tuple[slice, Chunk]]:
        """Each chunk of all ranks' tokens after its logits, this rank's first; slices are of T."""
        if self.parts.mine.start == self.parts.mine.stop:
            return
        weight = self._layout.parameters[HEAD].detach()[self.parts.mine].to(hidden_nC.dtype)
        rank, number = self.wire.rank, 0
        for owner in [rank, *self._in_turn()]:
            hidden = hidden_nC if owner == rank else self._arrived(self._arriving.hidden, owner)
            place = self._places[owner]
            for start in range(0, len(hidden), CHUNK_TOKENS):
                rows = slice(start, min(start + CHUNK_TOKENS, len(hidden)))
                if number == len(self._heads):
                    self._heads.append(
                        FusedLinearCrossEntropy(self._heads[0].vocab_size, self._heads[0].backends)
                    )
                targets = self._targets[owner][rows].contiguous()
                chunk = Chunk(
                    self._heads[number], hidden[rows], weight, targets, self.parts.mine.start
                )
                chunk.forward(wants_grad=True)
                number += 1
                yield slice(place.start + rows.start, place.start + rows.stop), chunk

    def _whole_sums(self, chunks: Sequence[tuple[slice, Chunk]], dtype: torch.dtype) -> Tensor:
        """(2, T): partition sums and target logits of the whole vocabulary, on all ranks alike."""
        own = torch.zeros(2, sum(map(len, self._targets)), dtype=wide(dtype))
        for place, chunk in chunks:
            own[0, place], own[1, place] = chunk.exp_sum, chunk.target_logit
        rank = self.wire.rank
        if rank in self.parts.workers:
            for other in self.wire.others:
                if other in self.parts.workers or len(self._targets[other]):
                    self._send(own, other, SUMS_TAG)
        whole = torch.zeros_like(own)
        # In the order of ranks, so that all add alike.
        for worker in self.parts.workers:
            if worker == rank:
                whole += own
            elif worker in self._arriving.sums:
                whole += self._arrived(self._arriving.sums, worker)
        return whole

    def _gradients(
        self,
        chunks: Sequence[tuple[slice, Chunk]],
        tokens: int,
        like: Tensor,
        grad_scale: float,
    ) -> Tensor:
        """(T, C): what this part gives the hidden states of all tokens; others' leaves."""
        found = torch.zeros(tokens, like.size(1), dtype=wide(like.dtype))
        # Others' first: it travels while the weight's gradient is computed.
        for place, chunk in reversed(chunks):
            found[place] = chunk.hidden_gradient(grad_scale)
        if chunks:
            for other in self.wire.others:
                if len(self._targets[other]):
                    part = found[self._places[other]].to(like.dtype)
                    self._send(part, other, GRADIENT_TAG)
        return found

    def _own_gradient(self, own_nC: Tensor) -> Tensor:
        """What all parts give this rank's tokens, added in the order of ranks."""
        whole = torch.zeros_like(own_nC)
        for worker in self.parts.workers:
            if worker == self.wire.rank:
                whole += own_nC
            elif worker in self._arriving.gradient:
                whole += widen(self._arrived(self._arriving.gradient, worker))
        return whole

    # --- messages

    def _in_turn(self) -> list[int]:
        """Ranks that have tokens, the next one first: so that not all want one rank's at once."""
        size = self.wire.world_size
        others = [(self.wire.rank + step) % size for step in range(1, size)]
        return [other for other in others if other in self._arriving.hidden]

    def _receive(self, buffer: Tensor, source: int, tag: int) -> tuple[Tensor, Pending]:
        return buffer, self.wire.receive(buffer, source, tag, WHAT)

    def _arrived(self, arriving: dict[int, tuple[Tensor, Pending]], source: int) -> Tensor:
        tensor, pending = arriving[source]
        started = time.perf_counter()
        pending.wait()
        self._times.wait_s += time.perf_counter() - started
        return tensor

    def _send(self, tensor: Tensor, to: int, tag: int) -> None:
        if to != self.wire.rank:
            self._leaving.append(self.wire.send(tensor, to, tag, WHAT))

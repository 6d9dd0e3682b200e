"""Each rank computes a part of the lm_head's vocabulary, for the tokens of all ranks.

Summed, the lm_head's gradient is most of what a step sends: V * C numbers, however few the tokens.
Here what travels belongs to tokens, so it pays where a step has few: hidden states go to all
ranks, their gradients come back, and each token has two sums over a part.

    layers forward -> hidden states -> | own part: logits | -> sums -> | gradients of hidden states
    -> | own part: weight's gradient | layers backward

Sum and softmax of a vocabulary in parts: Megatron-LM (Shoeybi et al. 2019), section 3. Here each
rank's part is as large as its share of the step's work, to VOCAB_GRANULARITY.

Traffic of a rank with n of a step's T tokens, in numbers: hidden states n * C to each other rank,
the gradient of theirs (T - n) * C, and 2 T sums to each.

Shape legend: T tokens of the step, n of one rank, R of a chunk, C n_embd, V padded vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from yoked.costmodel.assignment import ranges_of, split_by_weight
from yoked.costmodel.memory import HEAD_CHUNK_TOKENS
from yoked.train.comm.communicator import MessageKind, Tag, Work
from yoked.train.lm_head.protocol import HeadOutput
from yoked.train.model.cross_entropy import Chunk, FusedLinearCrossEntropy, token_nats
from yoked.train.model.precision import wide, widen
from yoked.train.optim.late_gradients import LATE_HEAD_GRADIENT
from yoked.train.optim.param_buffers import HEAD, ParamBuffers
from yoked.train.state import RowSharded, TrainState
from yoked.train.step_batch import HeadGroup, StepBatch

NAME = "the vocab-parallel lm_head"
# A part of the vocabulary has a multiple of so many tokens' rows.
VOCAB_GRANULARITY = 16
# What each rank has of its part alone.
SHARDED = (HEAD, f"exp_avg/{HEAD}", f"exp_avg_sq/{HEAD}")
SUMS, GRADIENT = (Tag(MessageKind.VOCAB_PARALLEL, index) for index in range(2))


def hidden_tag(micro_batch: int) -> Tag:
    """Of a micro-batch's hidden states."""
    return Tag(MessageKind.VOCAB_PARALLEL, 2 + micro_batch)  # behind SUMS and GRADIENT


def partition_vocab(vocab: int, work: Sequence[float]) -> RowSharded:
    """Each rank's rows of the weight, in proportion to its work; vocab: V."""
    assert vocab % VOCAB_GRANULARITY == 0, vocab
    groups = split_by_weight(vocab // VOCAB_GRANULARITY, work)
    return RowSharded(
        tuple(slice(VOCAB_GRANULARITY * g.start, VOCAB_GRANULARITY * g.stop) for g in groups)
    )


@dataclass
class _Arrivals:
    """What others send this rank in a step, by rank.

    hidden: (n, C) of their tokens, and where each micro-batch's end, with its Work. sums: (2, T) of
    their parts. gradient: (n, C) that their parts give this rank's tokens.
    """

    hidden: dict[int, tuple[Tensor, list[tuple[int, Work]]]] = field(default_factory=dict)
    sums: dict[int, tuple[Tensor, Work]] = field(default_factory=dict)
    gradient: dict[int, tuple[Tensor, Work]] = field(default_factory=dict)


class VocabParallelHead:
    """This rank's part, and the exchange with the others.

    work: relative parts of the vocabulary, by rank, as the run starts.
    """

    grouped = True

    def __init__(
        self,
        state: TrainState,
        buffers: ParamBuffers,
        head: FusedLinearCrossEntropy,
        work: Sequence[float],
    ) -> None:
        self.comm, self._state, self._buffers = state.comm, state, buffers
        # One for each chunk of a step: the logits of all of them are kept.
        self._heads = [head]
        self._work = work
        self._is_whole = True  # whether this rank has all rows of the weight as they are now
        self._partition(work)
        self._leaving: list[Work] = []
        self._sent_micro_batches, self._grad_scale = 0, 0.0
        self._targets: Sequence[Tensor] = ()  # (n,) of each rank
        self._places: list[slice] = []  # of each rank's tokens, among all T
        self._arriving = _Arrivals()

    @property
    def extra_tokens(self) -> int:
        """By which this rank's part is more work than its own tokens; below zero: less."""
        tokens = [len(targets) for targets in self._targets]
        mine = self._mine
        part = len(range(mine.start, mine.stop)) / len(self._buffers.head_grad)
        return round(sum(tokens) * part) - tokens[self.comm.rank]

    def assign(self, work: Sequence[float]) -> None:
        """From the next step on, parts in proportion to `work`, by rank."""
        self._work = work

    def gather(self) -> None:
        """Until every rank holds the whole weight as it is now."""
        if not self._is_whole:
            self._state.all_gather(HEAD)
            self._is_whole = True

    def _partition(self, work: Sequence[float]) -> None:
        self.placement = partition_vocab(len(self._buffers.head_grad), work)
        # Moments move with the weight's rows, and so does a gradient that is used late.
        late = [LATE_HEAD_GRADIENT] if LATE_HEAD_GRADIENT in self._state.entries else []
        self._state.redistribute([*SHARDED, *late], self.placement)
        self._buffers.own_vocab = self._mine

    @property
    def _mine(self) -> slice:
        return self.placement.bounds[self.comm.rank]

    # --- a step, in this order

    def begin_step(self, batch: StepBatch) -> None:
        """Take over parts that have moved, and post what will be received."""
        for work in self._leaving:  # of the last step: within a step nobody waits for them
            work.wait()
        self._leaving, self._sent_micro_batches = [], 0
        self._grad_scale = batch.grad_scale
        self._partition(self._work)
        rank, workers = self.comm.rank, self.placement.ranks
        width, dtype = self._buffers.head_grad.size(1), self._buffers.model.compute_dtype
        self._targets = [batch.targets(other) for other in range(self.comm.world_size)]
        tokens = [len(targets) for targets in self._targets]
        self._places = [slice(part.start, part.stop) for part in ranges_of(tokens)]
        hidden = torch.empty(sum(tokens), width, dtype=dtype)  # (T, C)
        self._arriving = found = _Arrivals()
        for peer in self.comm.peers:
            if rank in workers and tokens[peer]:
                sizes = [rows[:, 1:].numel() for rows in batch.rows_by_rank[peer]]
                found.hidden[peer] = self._receive_hidden(hidden[self._places[peer]], peer, sizes)
            if peer in workers and (rank in workers or tokens[rank]):
                sums = torch.empty(2, sum(tokens), dtype=wide(dtype))
                found.sums[peer] = sums, self.comm.irecv(sums, peer, SUMS, NAME)
            if peer in workers and tokens[rank]:
                gradient = torch.empty(tokens[rank], width, dtype=dtype)
                found.gradient[peer] = gradient, self.comm.irecv(gradient, peer, GRADIENT, NAME)

    def _receive_hidden(
        self, hidden_nC: Tensor, peer: int, sizes: Sequence[int]
    ) -> tuple[Tensor, list[tuple[int, Work]]]:
        works = [
            (part.stop, self.comm.irecv(hidden_nC[part.start : part.stop], peer, tag, NAME))
            for part, tag in zip(ranges_of(sizes), map(hidden_tag, range(len(sizes))), strict=True)
        ]
        return hidden_nC, works

    def offer(self, hidden_bTC: Tensor) -> Tensor:
        """Send a micro-batch's hidden states to all ranks that have a part."""
        own = hidden_bTC.detach().flatten(0, 1).contiguous()
        for worker in self.placement.ranks:
            self._send(own, worker, hidden_tag(self._sent_micro_batches))
        self._sent_micro_batches += 1
        return hidden_bTC

    def __call__(self, hidden_bTC: Sequence[Tensor], group: HeadGroup) -> HeadOutput:
        """Loss and gradients of all of this rank's micro-batches; adds its part's gradient."""
        del group  # all of the step's
        self._is_whole = False  # each rank gets new values of its part
        rank, width = self.comm.rank, self._buffers.head_grad.size(1)
        own = [hidden.detach().flatten(0, 1) for hidden in hidden_bTC]
        nothing = torch.empty(0, width, dtype=self._buffers.model.compute_dtype)
        hidden_nC = torch.cat([nothing, *own])  # (0, C) on a rank without rows
        all_here = self.comm.barrier_async()  # tells waiting for ranks from waiting for bytes
        chunks = list(self._through_part(hidden_nC, all_here))  # keeps the logits of all T tokens
        all_here.wait()
        sums_2T = self._whole_sums(chunks, hidden_nC.dtype)
        for place, chunk in chunks:
            chunk.exp_sum, chunk.target_logit = sums_2T[:, place]  # (R,) each, now of all of V
        gradient_TC = self._gradients(chunks, hidden_nC)
        weight_grad = self._buffers.head_grad[self._mine]
        for _, chunk in chunks:
            chunk.weight_gradient(self._grad_scale, weight_grad)
        place = self._places[rank]
        gradient_nC = self._own_gradient(gradient_TC[place]).to(hidden_nC.dtype)
        nats = token_nats(sums_2T[0, place], sums_2T[1, place], self._targets[rank])
        by_micro_batch = torch.split(gradient_nC, [len(each) for each in own])
        return HeadOutput(
            float(nats.cpu().double().sum()),
            [g.view_as(hidden) for g, hidden in zip(by_micro_batch, hidden_bTC, strict=True)],
        )

    def _through_part(self, hidden_nC: Tensor, all_here: Work) -> Iterator[tuple[slice, Chunk]]:
        """Each chunk of all ranks' tokens after its logits, this rank's first; slices are of T."""
        mine, rank = self._mine, self.comm.rank
        if mine.start == mine.stop:
            return
        weight = self._buffers.parameters[HEAD].detach()[mine].to(hidden_nC.dtype)
        number, peers = 0, self._in_turn()
        for owner in [rank, *peers]:
            if peers and owner == peers[-1]:  # what it waits for afterwards is bytes
                all_here.wait()
            hidden, works = (hidden_nC, []) if owner == rank else self._arriving.hidden[owner]
            place, arrived = self._places[owner], len(hidden) if owner == rank else 0
            for start in range(0, len(hidden), HEAD_CHUNK_TOKENS):
                rows = slice(start, min(start + HEAD_CHUNK_TOKENS, len(hidden)))
                while arrived < rows.stop:  # a chunk may have tokens of several micro-batches
                    arrived, work = works.pop(0)
                    work.wait()
                if number == len(self._heads):
                    self._heads.append(
                        FusedLinearCrossEntropy(self._heads[0].vocab_size, self._heads[0].backends)
                    )
                targets = self._targets[owner][rows].contiguous()
                chunk = Chunk(self._heads[number], hidden[rows], weight, targets, mine.start)
                chunk.forward(wants_grad=True)
                number += 1
                yield slice(place.start + rows.start, place.start + rows.stop), chunk

    def _whole_sums(self, chunks: Sequence[tuple[slice, Chunk]], dtype: torch.dtype) -> Tensor:
        """(2, T): partition sums and target logits of the whole vocabulary, on all ranks alike."""
        own = torch.zeros(2, sum(map(len, self._targets)), dtype=wide(dtype))
        for place, chunk in chunks:
            own[0, place], own[1, place] = chunk.exp_sum, chunk.target_logit
        rank, workers = self.comm.rank, self.placement.ranks
        if rank in workers:
            for peer in self.comm.peers:
                if peer in workers or len(self._targets[peer]):
                    self._send(own, peer, SUMS)
        whole = torch.zeros_like(own)
        # In the order of ranks, so that all add alike.
        for worker in workers:
            if worker == rank:
                whole += own
            elif worker in self._arriving.sums:
                whole += _arrived(self._arriving.sums[worker])
        return whole

    def _gradients(self, chunks: Sequence[tuple[slice, Chunk]], like: Tensor) -> Tensor:
        """(T, C): what this part gives the hidden states of all tokens; others' leaves."""
        tokens = sum(map(len, self._targets))
        found = torch.zeros(tokens, like.size(1), dtype=wide(like.dtype))
        # Others' first: it travels while the weight's gradient is computed.
        for place, chunk in reversed(chunks):
            found[place] = chunk.hidden_gradient(self._grad_scale)
        if chunks:
            for peer in self.comm.peers:
                if len(self._targets[peer]):
                    self._send(found[self._places[peer]].to(like.dtype), peer, GRADIENT)
        return found

    def _own_gradient(self, own_nC: Tensor) -> Tensor:
        """What all parts give this rank's tokens, added in the order of ranks."""
        whole = torch.zeros_like(own_nC)
        for worker in self.placement.ranks:
            if worker == self.comm.rank:
                whole += own_nC
            elif worker in self._arriving.gradient:
                whole += widen(_arrived(self._arriving.gradient[worker]))
        return whole

    def _in_turn(self) -> list[int]:
        """Ranks that have tokens, the next one first: so that not all want one rank's at once."""
        size = self.comm.world_size
        others = [(self.comm.rank + step) % size for step in range(1, size)]
        return [other for other in others if other in self._arriving.hidden]

    def _send(self, tensor: Tensor, dst: int, tag: Tag) -> None:
        if dst != self.comm.rank:
            self._leaving.append(self.comm.isend(tensor, dst, tag, NAME))


def _arrived(received: tuple[Tensor, Work]) -> Tensor:
    tensor, work = received
    work.wait()
    return tensor

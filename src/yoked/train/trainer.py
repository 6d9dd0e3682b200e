"""One training step, and evaluation: what every rank computes, exactly once a row.

Shape legend: B rows of a step, R this rank's rows, b rows of a micro-batch, T tokens a row.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yoked.timeline.deferral import Parts, deferred_backwards, part_batches
from yoked.timeline.evening import Evening, Handover, extra_tokens
from yoked.timeline.fastest import OneHead, deferred_by_rank
from yoked.train.choose import synchronize
from yoked.train.divided import DividedHead
from yoked.train.handover import Handovers
from yoked.train.headparts import HeadParts
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy, LossAndGrads
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.layout import Layout
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.shares import split_rows
from yoked.train.sync.headchoice import row_head_part
from yoked.train.sync.payload import PAYLOADS, Payload
from yoked.train.sync.sync import Moment, Sync
from yoked.train.sync.wire import Wire

Rows = NDArray[np.int64]
# Gradients of the scalars are 1e-5 and more as soon as the layers do something.
SCALAR_NOISE = 1e-9


class Stream(Protocol):
    """The sample stream: row i is fixed, however it is shared out."""

    def batch(self, start: int, stop: int) -> Rows:
        """Rows [start, stop), each of T + 1 tokens."""


@dataclass(frozen=True)
class StepStats:
    """This rank's part of a step. nats: summed loss of its tokens; seconds by what they went to.

    fixed_s: of compute_s, what does not grow with the rows: the optimizer. extra_tokens: that went
    through this rank's lm_head for others; below zero, through others' for it. head_s: of
    compute_s, what all that went through it took; 0 where that is not known.
    """

    nats: float
    tokens: int
    compute_s: float
    comm_s: float
    wait_s: float
    bytes_sent: int
    fixed_s: float = 0.0
    extra_tokens: int = 0
    head_s: float = 0.0

    @classmethod
    def from_figures(cls, figures: Sequence[float]) -> StepStats:
        """From its fields' numbers, in their order; what follows them is left out."""
        values: dict[str, Any] = {
            each.name: int(figure) if each.type == "int" else figure
            for each, figure in zip(fields(cls), figures, strict=False)
        }
        return cls(**values)


class Trainer:
    """Trains one model with the other ranks; holds no state that a checkpoint lacks, but for what
    a lossy sync has lost so far.
    """

    def __init__(
        self,
        model: GPT,
        layout: Layout,
        optimizer: MuonAdamW,
        head: FusedLinearCrossEntropy,
        wire: Wire,
        stream: Stream,
        *,
        rows_per_step: int,
        device_batch_size: int,
        shares: list[float],
        payload: Payload = PAYLOADS["exact"],
        divided: bool = False,
        head_rank: int | None = None,
    ) -> None:
        """divided: the lm_head is, by its vocabulary (`yoked.train.divided`); head_rank: the only
        one that has it (`yoked.timeline.fastest`).
        """
        self.model, self.layout, self.optimizer, self.head = model, layout, optimizer, head
        self.wire, self.stream = wire, stream
        self.rows_per_step, self.device_batch_size = rows_per_step, device_batch_size
        self.ranges = split_rows(rows_per_step, shares)
        self.sync = Sync(wire, layout, payload, sums_head=not divided)
        shape = model.config
        tokens = device_batch_size * shape.sequence_len
        # A rank alone has no message to hide.
        deferred = deferred_backwards(tokens, shape.n_embd, shape.n_layer)
        deferred = deferred if wire.active else 1
        self.evening = Evening(
            device_batch_size, deferred, shape.sequence_len, row_head_part(shape), divided=divided
        )
        self.handovers = Handovers(wire, shape.n_embd, model.compute_dtype)
        by_rank = [len(part) * shape.sequence_len for part in self.ranges]
        self.divided = DividedHead(wire, optimizer, head, by_rank) if divided else None
        self.head_parts = self.divided.parts if self.divided is not None else None
        self._next_head, self._head_s = head_rank, 0.0
        self._move_head()
        model.before_layers = self.sync.await_matrices

    @property
    def _sums_head(self) -> bool:
        """Whether every rank has a gradient of the whole lm_head."""
        return self.head_parts is None

    @property
    def head_rank(self) -> int | None:
        """The only rank that has the lm_head in the next step."""
        return self._next_head

    @property
    def _deferred(self) -> list[int]:
        """By rank, at most so many micro-batches go back after the last one's lm_head."""
        has_it = self.handovers.head_rank
        return deferred_by_rank(self.wire.world_size, self.evening.deferred, has_it)

    def _parts(self, count: int) -> Parts:
        """So many micro-batches of this rank by message."""
        return part_batches(count, self._deferred[self.wire.rank])

    def _all_at(self, head_rank: int) -> list[slice]:
        """The lm_head's rows by rank, where one has them all."""
        rows = len(self.layout.head_grad)
        ranks = range(self.wire.world_size)
        return [slice(rows * (rank > head_rank), rows * (rank >= head_rank)) for rank in ranks]

    def place_head(self, head_rank: int | None) -> None:
        """From the next step on this rank alone has the lm_head; None: every rank has it.

        On all ranks before the same step. Not where it is divided.
        """
        assert self.divided is None, "a divided lm_head moves with the rows"
        self._next_head = head_rank

    def _move_head(self) -> None:
        """To where `place_head` has it. Collective."""
        head_rank, before = self._next_head, self.handovers.head_rank
        if head_rank == before:
            return
        if before is not None:
            self.settle(moments=True)
            self.head_parts = None
            self.layout.head_rows = slice(0, len(self.layout.head_grad))
        if head_rank is not None:
            self.head_parts = HeadParts(self.wire, self.optimizer, self._all_at(head_rank))
        self.handovers.head_rank = head_rank
        self.sync.sum_head(self._sums_head)

    @property
    def my_rows(self) -> range:
        """This rank's rows of a step, counted from the step's first."""
        return self.ranges[self.wire.rank]

    @property
    def row_work(self) -> list[float]:
        """By rank, what it computes of a step, in rows."""
        rows, has_it = [float(len(part)) for part in self.ranges], self.handovers.head_rank
        return rows if has_it is None else list(OneHead(has_it, self.evening.head_part).work(rows))

    def reshare(self, ranges: list[range], handovers: tuple[Handover, ...] = ()) -> None:
        """Compute these rows of the following steps; on all ranks before the same step."""
        assert sum(len(part) for part in ranges) == self.rows_per_step, ranges
        self.ranges = ranges
        if self.divided is None:
            self.handovers.agreed = handovers
            return
        extra = extra_tokens(handovers, len(ranges))
        row_tokens = self.model.config.sequence_len
        self.divided.share(
            [len(part) * row_tokens + more for part, more in zip(ranges, extra, strict=True)]
        )

    def step(self, step: int) -> StepStats:
        """Take step `step` (counted from 0) on rows [step * B, (step + 1) * B).

        Collective: every rank calls this once a step, also one without rows.
        """
        began, sent_before = time.perf_counter(), self.wire.bytes_sent
        self._move_head()
        started = time.perf_counter()
        nats = self.gradients(step)
        sync = self.sync
        rows_s = time.perf_counter() - started - sync.times.wait_s - sync.times.comm_s
        self.optimizer.begin_adamw(step, sync.rows.used_rows)
        sync.await_all()
        for stack in self.optimizer.owned:
            sync.collect(stack)
            before = sync.before_update(stack)
            self.optimizer.step_stack(step, stack)
            sync.share(stack, before)
        rows = sync.finish()
        zero_rounding_noise(self.layout.scalar_grads)
        self.optimizer.step_adamw(step, rows)
        # On a GPU the numbers below would otherwise be of the queue, not of the work.
        synchronize(self.model.device)
        times = sync.times
        compute_s = time.perf_counter() - started - times.wait_s - times.comm_s
        return StepStats(
            nats=nats,
            tokens=len(self.my_rows) * self.model.config.sequence_len,
            compute_s=compute_s,
            comm_s=times.comm_s + started - began,
            wait_s=times.wait_s,
            bytes_sent=self.wire.bytes_sent - sent_before,
            fixed_s=compute_s - rows_s,
            extra_tokens=(self.divided or self.handovers).extra_tokens,
            head_s=self._head_s,
        )

    def settle(self, *, moments: bool = False) -> None:
        """Until the weights are those of the last step, on all ranks: before they are read.

        moments: AdamW's of the lm_head, too. Collective.
        """
        self.sync.settle()
        if self.head_parts is not None:
            self.head_parts.settle(moments=moments)

    def gradients(self, step: int) -> float:
        """Compute this rank's gradients of a step and hand them to the sync; returns its nats."""
        self.layout.zero_gradients()
        self._head_s = 0.0
        first = step * self.rows_per_step
        batch = torch.from_numpy(self.stream.batch(first, first + self.rows_per_step))
        batch = batch.to(self.model.device)
        by_rank = [
            torch.split(batch[part.start : part.stop], self.device_batch_size) if len(part) else ()
            for part in self.ranges
        ]
        inputs = [[rows[:, :-1] for rows in each] for each in by_rank]
        tables = self.sync.begin(inputs, self._deferred)
        scale = 1.0 / (self.rows_per_step * self.model.config.sequence_len)
        if self.divided is None:
            nats = self._by_whole_head(by_rank, tables, scale)
        else:
            targets = [batch[part.start : part.stop, 1:].flatten() for part in self.ranges]
            self.divided.begin(targets, self.model.compute_dtype, self.sync.times)
            nats = self._by_divided_head(self.divided, inputs[self.wire.rank], tables, scale)
        self.sync.rest_ready()
        return nats

    def _by_whole_head(
        self, by_rank: Sequence[Sequence[Tensor]], tables: Sequence[RowGrads], scale: float
    ) -> float:
        """Each micro-batch through layers and head, and back; the last few after the last head.

        Where another rank has the head, each goes back once that one has been through it, and
        meanwhile as many go on as may be deferred.
        """
        micro_batches = by_rank[self.wire.rank]
        if self.head_parts is not None:
            self.head_parts.changes()
        self.handovers.begin(by_rank, self.evening, self.sync.times)
        lm_head = partial(
            self._through_head,
            weight_VC=self.model.lm_head.weight.detach().to(self.model.compute_dtype),
            grad_scale=scale,
            weight_grad_VC=self.layout.head_grad,
        )

        def help_others(number: int) -> None:
            for theirs, their_targets, answer in self.handovers.ahead(number):
                answer(lm_head(theirs.to(self.model.device), targets_N=their_targets))

        parts = self._parts(len(micro_batches))
        waiting: deque[_Deferred] = deque()
        nats = 0.0
        for number, (rows, table) in enumerate(zip(micro_batches, tables, strict=True)):
            nats += self._make_room(waiting, number, len(micro_batches))
            self.handovers.follow(number)
            hidden = self.model(rows[:, :-1], table)
            help_others(number)
            targets = rows[:, 1:].flatten()
            head_hidden, head_targets = self.handovers.enter(
                number, hidden.detach().flatten(0, 1), targets
            )
            loss = lm_head(
                head_hidden,
                targets_N=head_targets,
                on_grad_chunk=self.sync.head_piece_ready if self._sums_head else None,
                at_once=len(head_targets) > len(targets),
            )
            own_nats, gradient = self.handovers.leave(number, loss, len(targets))
            nats += own_nats
            waiting.append(_Deferred(number, hidden, gradient.view_as(hidden)))
            if number < parts.early and not self.handovers.owes(number):
                nats += self._backward(waiting.pop())
        help_others(len(micro_batches))
        return nats + self._backward_deferred(waiting, parts)

    def _through_head(self, hidden_NC: Tensor, **about: Any) -> LossAndGrads:
        """As `FusedLinearCrossEntropy.loss`, by the clock."""
        # A GPU has only been told to. Where others wait for the result it is waited for anyway.
        known = self.model.device.type == "cpu" or self.handovers.head_rank is not None
        if known:
            synchronize(self.model.device)
        started = time.perf_counter()
        result = self.head.loss(hidden_NC, **about)
        if known:
            synchronize(self.model.device)
            self._head_s += time.perf_counter() - started
        return result

    def _make_room(self, waiting: deque[_Deferred], number: int, count: int) -> float:
        """Before micro-batch `number` of so many: backward passes that come before it, and what is
        complete with them leaves. Returns the nats that are known only now.
        """
        nats = 0.0
        parts = self._parts(count)
        if self.handovers.gives_all:
            if len(waiting) == self.evening.deferred:
                nats = self._backward(waiting.popleft())
        elif number == parts.early:
            # Of what was handed over, the gradient has had the time of all of these.
            while waiting:
                nats += self._backward(waiting.popleft())
            self.sync.reach(Moment.DEFERRING)
        if number == count - 1 and self._sums_head:
            self.sync.reach(Moment.LAST_HEAD)
        return nats

    def _by_divided_head(
        self,
        divided: DividedHead,
        inputs: Sequence[Tensor],
        tables: Sequence[RowGrads],
        scale: float,
    ) -> float:
        """All micro-batches through the layers, all through the head, all back."""
        self.sync.reach(Moment.LAST_HEAD)
        hidden = [self.model(rows, table) for rows, table in zip(inputs, tables, strict=True)]
        nothing = torch.empty(0, self.model.config.n_embd, dtype=self.model.compute_dtype)
        loss = divided.loss(
            torch.cat([nothing, *(each.detach().flatten(0, 1) for each in hidden)]), scale
        )
        assert loss.hidden_grad is not None
        gradients = torch.split(loss.hidden_grad, [each.shape[:2].numel() for each in hidden])
        waiting = deque(
            _Deferred(number, each, gradient.view_as(each))
            for number, (each, gradient) in enumerate(zip(hidden, gradients, strict=True))
        )
        parts = self._parts(len(hidden))
        return float(loss.loss_sum) + self._backward_deferred(waiting, parts)

    def _backward_deferred(self, waiting: deque[_Deferred], parts: Parts) -> float:
        """The micro-batches that are left; returns the nats that are known only now."""
        nats = 0.0
        while waiting:
            if len(waiting) <= parts.last + sum(parts.deferred):
                self.sync.reach(Moment.DEFERRING)
            if len(waiting) <= parts.last + parts.deferred[1]:
                self.sync.reach(Moment.MOST_BACKWARD)
            if len(waiting) <= parts.last:
                self.sync.reach(Moment.LAST_BACKWARD)
            nats += self._backward(waiting.popleft())
        return nats

    def _backward(self, batch: _Deferred) -> float:
        """Through the layers; returns the nats that were handed over, and are known only now."""
        nats = self.handovers.complete(batch.number, batch.gradient.flatten(0, 1))
        batch.hidden.backward(batch.gradient)  # type: ignore[no-untyped-call]
        return nats


class _Deferred(NamedTuple):
    """A micro-batch that has been through the head, and what it keeps for its backward pass.

    hidden, gradient: (b, T, C).
    """

    number: int
    hidden: Tensor
    gradient: Tensor


def zero_rounding_noise(scalar_grads: Tensor) -> None:
    """Set gradients of scalars to zero, in place, where they are nothing but rounding.

    In a new model every layer's output is zero, so the final norm cancels what resid_lambdas,
    x0_lambdas and backout_lambda scale: their gradient is zero but for rounding (1e-10 in
    float32, of the size of AdamW's eps). AdamW would turn that into a step of full size, whose
    sign and size depend on the order of summation, so on the number of ranks.
    """
    scalar_grads.masked_fill_(scalar_grads.abs() < SCALAR_NOISE, 0.0)


@torch.no_grad()
def evaluate_bpb(
    model: GPT,
    head: FusedLinearCrossEntropy,
    rows_of: Callable[[Rows], Rows],
    num_rows: int,
    token_bytes: Tensor,
    wire: Wire,
    device_batch_size: int,
    shares: Sequence[float] = (),
) -> float:
    """Bits per byte over rows [0, num_rows): summed nats / (ln 2 * bytes of the targets).

    Tokens without bytes (special tokens) count neither way. rows_of: reads rows by number.
    token_bytes: (V,) int on the model's device. shares: of the rows, by rank; none: equal ones.
    Collective.
    """
    mine = split_rows(num_rows, shares or [1.0] * wire.world_size)[wire.rank]
    totals = torch.zeros(2, dtype=torch.float64)
    weight = model.lm_head.weight.to(model.compute_dtype)
    for first in range(mine.start, mine.stop, device_batch_size):
        numbers = np.arange(first, min(first + device_batch_size, mine.stop), dtype=np.int64)
        rows = torch.from_numpy(rows_of(numbers)).to(model.device)
        targets = rows[:, 1:].flatten()
        hidden = model(rows[:, :-1]).flatten(0, 1)
        result = head.loss(hidden, weight, targets)
        target_bytes = token_bytes[targets]
        totals[0] += (result.token_nats * (target_bytes > 0)).cpu().double().sum()
        totals[1] += target_bytes.sum().cpu()
    wire.all_reduce(totals, "the evaluation").wait()
    nats, byte_count = totals.tolist()
    return float(nats / (math.log(2) * byte_count)) if byte_count else math.nan

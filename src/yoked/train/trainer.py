"""One training step, and evaluation: what every rank computes, exactly once a row.

Shape legend: B rows of a step, R this rank's rows, b rows of a micro-batch, T tokens a row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yoked.timeline.assignment import ranges_of, split_by_weight
from yoked.timeline.schedule import (
    MicroBatchSchedule,
    max_deferred_backwards,
    schedule_micro_batches,
)
from yoked.train.choose import synchronize
from yoked.train.comm.communicator import Communicator
from yoked.train.head import Head
from yoked.train.lm_head.vocab_parallel import VocabParallelHead
from yoked.train.model import GPT
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.sync.payload import PAYLOADS, Payload
from yoked.train.sync.sync import Moment, Sync
from yoked.train.tables import RowGradients

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

    fixed_s: of compute_s, what does not grow with the rows: the optimizer. extra_tokens: by which
    this rank's part of a vocab-parallel lm_head is more work than its own tokens; below zero: less.
    head_s: of compute_s, the lm_head's; 0 where that is not known.
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
        buffers: ParamBuffers,
        optimizer: MuonAdamW,
        head: Head,
        comm: Communicator,
        stream: Stream,
        *,
        rows_per_step: int,
        device_batch_size: int,
        shares: list[float],
        payload: Payload = PAYLOADS["exact"],
        vocab_parallel: bool = False,
    ) -> None:
        """vocab_parallel: each rank computes a part of the lm_head's vocabulary."""
        self.model, self.buffers, self.optimizer, self.head = model, buffers, optimizer, head
        self.comm, self.stream = comm, stream
        self.rows_per_step, self.device_batch_size = rows_per_step, device_batch_size
        self.ranges = split_by_weight(rows_per_step, shares)
        self.sync = Sync(comm, buffers, payload, sums_head=not vocab_parallel)
        shape = model.config
        tokens = device_batch_size * shape.sequence_len
        # A rank alone has no message to hide.
        deferred = max_deferred_backwards(tokens, shape.n_embd, shape.n_layer)
        self._deferred = deferred if comm.active else 1
        self.vocab_parallel = (
            VocabParallelHead(comm, optimizer, head, self.rows) if vocab_parallel else None
        )
        model.before_layers = self.sync.await_matrices

    @property
    def rows(self) -> list[int]:
        """Rows of a step by rank."""
        return [len(part) for part in self.ranges]

    @property
    def my_rows(self) -> range:
        """This rank's rows of a step, counted from the step's first."""
        return self.ranges[self.comm.rank]

    def assign(self, rows: Sequence[int], lm_head: Sequence[float]) -> None:
        """From the next step on: rows by rank, and the relative parts of a vocab-parallel lm_head.

        On all ranks before the same step.
        """
        assert sum(rows) == self.rows_per_step, rows
        self.ranges = ranges_of(rows)
        if self.vocab_parallel is not None:
            self.vocab_parallel.share(lm_head)

    def step(self, step: int) -> StepStats:
        """Take step `step` (counted from 0) on rows [step * B, (step + 1) * B).

        Collective: every rank calls this once a step, also one without rows.
        """
        clock, sent_before = self.comm.clock, self.comm.bytes_sent
        clock.start()
        nats = self.gradients(step)
        sync = self.sync
        rows_s = clock.computed_s
        sync.await_all()
        for bucket in self.optimizer.owned:
            sync.collect(bucket)
            before = sync.before_update(bucket)
            self.optimizer.step_bucket(step, bucket)
            sync.share(bucket, before)
        rows = sync.finish()
        drop_noise(self.buffers.scalar_grads)
        self.optimizer.step_adamw(step, rows)
        # On a GPU the numbers below would otherwise be of the queue, not of the work.
        synchronize(self.model.device)
        compute_s = clock.computed_s
        return StepStats(
            nats=nats,
            tokens=len(self.my_rows) * self.model.config.sequence_len,
            compute_s=compute_s,
            comm_s=clock.blocked_s["bytes"],
            wait_s=clock.blocked_s["ranks"],
            bytes_sent=self.comm.bytes_sent - sent_before,
            fixed_s=compute_s - rows_s,
            extra_tokens=0 if self.vocab_parallel is None else self.vocab_parallel.extra_tokens,
            # A GPU has only been told to.
            head_s=clock.phase_s["lm_head"] if self.model.device.type == "cpu" else 0.0,
        )

    def settle(self, *, moments: bool = False) -> None:
        """Until the weights are those of the last step, on all ranks: before they are read.

        moments: AdamW's of the lm_head, too. Collective.
        """
        self.sync.settle()
        if self.vocab_parallel is not None:
            self.vocab_parallel.parts.settle(moments=moments)

    def gradients(self, step: int) -> float:
        """Compute this rank's gradients of a step and hand them to the sync; returns its nats."""
        self.buffers.zero_gradients()
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
        if self.vocab_parallel is None:
            nats = self._by_whole_head(by_rank, tables, scale)
        else:
            targets = [batch[part.start : part.stop, 1:].flatten() for part in self.ranges]
            self.vocab_parallel.begin(targets, self.model.compute_dtype)
            nats = self._by_vocab_parallel_head(
                self.vocab_parallel, inputs[self.comm.rank], tables, scale
            )
        self.sync.rest_ready()
        return nats

    def _by_whole_head(
        self, by_rank: Sequence[Sequence[Tensor]], tables: Sequence[RowGradients], scale: float
    ) -> float:
        """Each micro-batch through layers and head, and back; the last few after the last head."""
        micro_batches = by_rank[self.comm.rank]
        weight_VC = self.model.lm_head.weight.detach().to(self.model.compute_dtype)
        parts = schedule_micro_batches(len(micro_batches), self._deferred)
        waiting: deque[_Deferred] = deque()
        nats = 0.0
        for number, (rows, table) in enumerate(zip(micro_batches, tables, strict=True)):
            if number == parts.early:
                self.sync.reach(Moment.DEFERRING)
            if number == len(micro_batches) - 1:
                self.sync.reach(Moment.LAST_HEAD)
            hidden = self.model(rows[:, :-1], table)
            with self.comm.clock.phase("lm_head"):
                loss = self.head.loss(
                    hidden.detach().flatten(0, 1),
                    weight_VC,
                    rows[:, 1:].flatten(),
                    grad_scale=scale,
                    weight_grad_VC=self.buffers.head_grad,
                    on_piece=self.sync.head_piece_ready,
                )
            assert loss.hidden_grad is not None
            nats += float(loss.nats)
            waiting.append(_Deferred(hidden, loss.hidden_grad.view_as(hidden)))
            if number < parts.early:
                self._backward(waiting.pop())
        self._backward_deferred(waiting, parts)
        return nats

    def _by_vocab_parallel_head(
        self,
        vocab_parallel: VocabParallelHead,
        inputs: Sequence[Tensor],
        tables: Sequence[RowGradients],
        scale: float,
    ) -> float:
        """All micro-batches through the layers, all through the head, all back."""
        self.sync.reach(Moment.LAST_HEAD)
        hidden = [self.model(rows, table) for rows, table in zip(inputs, tables, strict=True)]
        nothing = torch.empty(0, self.model.config.n_embd, dtype=self.model.compute_dtype)
        with self.comm.clock.phase("lm_head"):
            loss = vocab_parallel.loss(
                torch.cat([nothing, *(each.detach().flatten(0, 1) for each in hidden)]), scale
            )
        assert loss.hidden_grad is not None
        gradients = torch.split(loss.hidden_grad, [each.shape[:2].numel() for each in hidden])
        waiting = deque(
            _Deferred(each, gradient.view_as(each))
            for each, gradient in zip(hidden, gradients, strict=True)
        )
        self._backward_deferred(waiting, schedule_micro_batches(len(hidden), self._deferred))
        return float(loss.nats)

    def _backward_deferred(self, waiting: deque[_Deferred], parts: MicroBatchSchedule) -> None:
        """The micro-batches that are left."""
        while waiting:
            if len(waiting) <= parts.last + sum(parts.deferred):
                self.sync.reach(Moment.DEFERRING)
            if len(waiting) <= parts.last + parts.deferred[1]:
                self.sync.reach(Moment.MOST_BACKWARD)
            if len(waiting) <= parts.last:
                self.sync.reach(Moment.LAST_BACKWARD)
            self._backward(waiting.popleft())

    def _backward(self, batch: _Deferred) -> None:
        batch.hidden.backward(batch.gradient)  # type: ignore[no-untyped-call]


class _Deferred(NamedTuple):
    """A micro-batch that has been through the head, and what it keeps for its backward pass.

    hidden, gradient: (b, T, C).
    """

    hidden: Tensor
    gradient: Tensor


def drop_noise(scalar_grads: Tensor) -> None:
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
    head: Head,
    rows_of: Callable[[Rows], Rows],
    num_rows: int,
    token_bytes: Tensor,
    comm: Communicator,
    device_batch_size: int,
    shares: Sequence[float] = (),
) -> float:
    """Bits per byte over rows [0, num_rows): summed nats / (ln 2 * bytes of the targets).

    Tokens without bytes (special tokens) count neither way. rows_of: reads rows by number.
    token_bytes: (V,) int on the model's device. shares: of the rows, by rank; none: equal ones.
    Collective.
    """
    mine = split_by_weight(num_rows, shares or [1.0] * comm.world_size)[comm.rank]
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
    comm.all_reduce(totals, "the evaluation").wait()
    nats, byte_count = totals.tolist()
    return float(nats / (math.log(2) * byte_count)) if byte_count else math.nan

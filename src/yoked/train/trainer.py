"""One training step, and evaluation: what every rank computes, exactly once a row.

Shape legend: B rows of a step, b rows of a micro-batch, T tokens a row, C n_embd.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yoked.costmodel.assignment import ranges_of, split_by_weight
from yoked.costmodel.schedule import max_deferred_backwards
from yoked.ranks.spans import SPANS
from yoked.train.comm.communicator import Communicator
from yoked.train.device import synchronize
from yoked.train.lm_head.protocol import LmHead
from yoked.train.lm_head.replicated import ReplicatedHead
from yoked.train.lm_head.vocab_parallel import VocabParallelHead
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import Update
from yoked.train.state import TrainState
from yoked.train.step_batch import MicroBatch, StepBatch
from yoked.train.sync.codecs import Codec
from yoked.train.sync.late import LateHeadSync, LateSteps, LateSync
from yoked.train.sync.same_step import SameStepSync
from yoked.train.sync.strategy import SyncStrategy

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

    def to_vector(self) -> list[float]:
        """All fields' numbers, in their order."""
        return [float(figure) for figure in astuple(self)]

    @classmethod
    def from_vector(cls, figures: Sequence[float]) -> StepStats:
        """What `to_vector` was given."""
        kinds = {"int": int, "float": float}
        named = zip(fields(cls), figures, strict=True)
        return cls(**{each.name: kinds[str(each.type)](figure) for each, figure in named})


class Pending(NamedTuple):
    """A micro-batch that has been through the lm_head and not gone back yet; both (b, T, C)."""

    micro_batch: MicroBatch
    hidden: Tensor
    hidden_grad: Tensor


class Trainer:
    """Trains one model with the other ranks; holds no state that a checkpoint lacks, but for what
    a lossy sync has lost so far.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: MuonAdamW,
        head: FusedLinearCrossEntropy,
        comm: Communicator,
        stream: Stream,
        *,
        rows: Sequence[int],
        batch_sizes: Sequence[int],
        codec: Codec | None = None,
        late: LateSteps | None = None,
        head_rows: Sequence[float] | None = None,
    ) -> None:
        """rows: of the first step, by rank. batch_sizes: the most of a micro-batch, by rank. codec,
        late: of `--sync`; None: exact, every gradient in its own step. head_rows: relative parts of
        the vocabulary that ranks compute of the lm_head; None: it is replicated.
        """
        self.model, self.optimizer, self.buffers = model, optimizer, optimizer.buffers
        self.head, self.comm, self.stream = head, comm, stream
        self.rows_per_step, self.batch_sizes = sum(rows), list(batch_sizes)
        self.ranges = ranges_of(rows)
        shape = model.config
        self.max_deferred = [
            max_deferred_backwards(size * shape.sequence_len, shape.n_embd, shape.n_layer)
            for size in batch_sizes
        ]
        if head_rows is not None:
            # All backward passes wait for the lm_head.
            self.max_deferred = [self.rows_per_step] * len(batch_sizes)
        elif late is not None:
            self.max_deferred = [0] * len(batch_sizes)
        if not comm.active:
            self.max_deferred = [1] * len(batch_sizes)  # a rank alone has no message to hide
        self.state = TrainState(comm, model.device)
        sums_head = head_rows is None
        self.sync: SyncStrategy
        if late is None:
            self.sync = SameStepSync(comm, self.buffers, codec, sums_head=sums_head)
        else:
            kept = optimizer.put_off(matrices=late.matrices)
            way = LateSync if late.matrices else LateHeadSync
            self.sync = way(comm, self.buffers, codec, self.state, kept, late, sums_head)
        optimizer.register(self.state)
        self.lm_head: LmHead
        if head_rows is None:
            self.lm_head = ReplicatedHead(self.buffers, head, self.sync.head_grad_ready)
        else:
            self.lm_head = VocabParallelHead(self.state, self.buffers, head, head_rows)
        # New matrices are waited for where the first layer reads them.
        model.before_layers = self.sync.wait_parameters

    @property
    def rows(self) -> list[int]:
        """Rows of a step by rank."""
        return [len(part) for part in self.ranges]

    def assign(self, rows: Sequence[int], lm_head: Sequence[float]) -> None:
        """From the next step on: rows by rank, and the relative parts of a vocab-parallel lm_head.

        On all ranks before the same step.
        """
        assert sum(rows) == self.rows_per_step, rows
        self.ranges = ranges_of(rows)
        self.lm_head.assign(lm_head)

    def step(self, step: int) -> StepStats:
        """Take step `step` (counted from 0) on rows [step * B, (step + 1) * B).

        Collective: every rank calls this once a step, also one without rows.
        """
        clock, sent_before = self.comm.clock, self.comm.bytes_sent
        clock.start()
        with SPANS.span("data"):
            batch = self._batch(step)  # of all ranks: each knows all token ids
        self.buffers.zero_grad()
        row_grads = self.sync.begin_step(batch)  # receives are posted before anything is sent
        self.lm_head.begin_step(batch)
        self.optimizer.catch_up(dict.fromkeys(row_grads))

        nats, pending = 0.0, deque[Pending]()  # backward passes that wait behind the last lm_head
        groups = list(batch.head_groups(together=self.lm_head.grouped))
        for number, group in enumerate(groups):
            with clock.phase("forward"):
                hidden = [
                    self.lm_head.offer(self.model(each.inputs, row_grads[each.index]))
                    for each in group.micro_batches
                ]
            if number == len(groups) // 2:
                self._update(step, self.sync.early_updates())
            with clock.phase("lm_head"):  # its backward pass is in its forward pass
                output = self.lm_head(hidden, group)
            nats += output.loss_sum
            pending.extend(map(Pending, group.micro_batches, hidden, output.hidden_grads))
            self._backward(pending, keep=group.keep_pending)
        self._backward(pending, keep=0)
        self._update(step, self.sync.early_updates())  # a rank may have no rows
        synchronize(self.model.device)  # others wait for what a GPU has done, not was told to do
        gradients_s = clock.computed_s - clock.phase_s["muon"]
        self.sync.backward_done()  # scalars and what is left leave

        self._update(step, self.sync.updates())
        head_gradient = self.sync.head_gradient()
        with clock.phase("adamw"):  # the same bits on every rank; rows arrive meanwhile
            self.optimizer.step_head(step, head_gradient)
        grads = self.sync.replicated()
        zero_rounding_noise(grads.scalars)
        with clock.phase("adamw"):
            self.optimizer.step_adamw(step, grads)
        synchronize(self.model.device)

        compute_s = clock.computed_s
        on_cpu = self.model.device.type == "cpu"  # a GPU's phases are what it was told to do
        return StepStats(
            nats=nats,
            tokens=batch.tokens(batch.rank),
            compute_s=compute_s,
            comm_s=clock.blocked_s["bytes"],
            wait_s=clock.blocked_s["ranks"],
            bytes_sent=self.comm.bytes_sent - sent_before,
            fixed_s=compute_s - gradients_s,
            extra_tokens=self.lm_head.extra_tokens,
            head_s=clock.phase_s["lm_head"] if on_cpu else 0.0,
        )

    def _update(self, step: int, updates: Iterable[Update]) -> None:
        """Matrices that this rank owns, summed; new ones travel while it goes on."""
        for due in updates:
            with self.comm.clock.phase("muon"):
                self.optimizer.step_bucket(step, due)
            self.sync.publish(due)

    def _batch(self, step: int) -> StepBatch:
        first = step * self.rows_per_step
        rows = torch.from_numpy(self.stream.batch(first, first + self.rows_per_step))
        by_rank = [
            torch.split(rows[part.start : part.stop], size) if len(part) else ()
            for part, size in zip(self.ranges, self.batch_sizes, strict=True)
        ]
        device, on_host = self.model.device, self.model.tables_device.type == "cpu"
        return StepBatch(by_rank, self.comm.rank, self.max_deferred, device, on_host, step)

    def _backward(self, pending: deque[Pending], keep: int) -> None:
        """Backward through the layers, oldest micro-batch first, until so many are left."""
        while len(pending) > keep:
            micro_batch, hidden, grad = pending.popleft()
            with self.comm.clock.phase("backward"):
                hidden.backward(grad)  # type: ignore[no-untyped-call]
            self.sync.micro_batch_done(micro_batch.index)

    def drain(self) -> None:
        """Until nothing of the last step is in flight, and parameters are as placed. Collective."""
        self.sync.drain()
        self.optimizer.catch_up_all()

    def gather_weights(self) -> None:
        """Until all ranks hold all weights as they are now. Collective."""
        self.drain()
        self.lm_head.gather()

    def close(self) -> None:
        """Give the model back as it was: another Trainer may train it."""
        self.sync.close()
        self.model.before_layers = None


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
    trainer: Trainer, rows_of: Callable[[Rows], Rows], num_rows: int, token_bytes: Tensor
) -> float:
    """Bits per byte over rows [0, num_rows): summed nats / (ln 2 * bytes of the targets).

    Tokens without bytes (special tokens) count neither way. rows_of: reads rows by number.
    token_bytes: (V,) int on the model's device. Ranks take as many rows as of a step.
    Collective; every rank holds the whole weights (`Trainer.gather_weights`).
    """
    model, comm, batch_size = trainer.model, trainer.comm, trainer.batch_sizes[trainer.comm.rank]
    mine = split_by_weight(num_rows, trainer.rows)[comm.rank]
    totals = torch.zeros(2, dtype=torch.float64)
    weight = model.lm_head.weight.to(model.compute_dtype)
    for first in range(mine.start, mine.stop, batch_size):
        numbers = np.arange(first, min(first + batch_size, mine.stop), dtype=np.int64)
        rows = torch.from_numpy(rows_of(numbers))
        targets = rows[:, 1:].flatten().to(model.device)
        hidden = model(rows[:, :-1].to(model.tables_device)).flatten(0, 1)
        result = trainer.head.loss(hidden, weight, targets)
        target_bytes = token_bytes[targets]
        totals[0] += (result.token_nats * (target_bytes > 0)).cpu().double().sum()
        totals[1] += target_bytes.sum().cpu()
    comm.all_reduce(totals, "the evaluation").wait()
    nats, byte_count = totals.tolist()
    return float(nats / (math.log(2) * byte_count)) if byte_count else math.nan

"""Live balance in a run: rank 0 follows what steps cost and decides, all ranks obey."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from yoked.costmodel.compute_cost import head_time_fraction
from yoked.train.balance.balancer import Assignment, Reassignment, RowBalancer
from yoked.train.balance.speed_estimator import WINDOW, RankStep, SpeedEstimator
from yoked.train.balance.text import describe_change, rank_names
from yoked.train.comm.communicator import Work
from yoked.train.runfolder import RunFolder
from yoked.train.trainer import StepStats, Trainer
from yoked.units import format_duration


class BalanceController:
    """Follows a run step by step; every rank has one, and rank 0's decides.

    hosts: their names, by rank. speeds: of each rank at the start, relative. now: how the run
    starts.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        hosts: Sequence[str],
        speeds: Sequence[float],
        now: Assignment,
    ) -> None:
        self._trainer, self._folder, self._comm = trainer, folder, trainer.comm
        shape = trainer.model.config
        self._row_tokens = shape.sequence_len
        self._names = rank_names(hosts)
        self._owners = set(trainer.buffers.owners.values())
        self._said_idle: set[int] = set()
        parallel = trainer.lm_head.grouped
        head_part = head_time_fraction(shape) if parallel else None
        self._speeds = SpeedEstimator(speeds)
        self._balancer = RowBalancer(now, head_part)
        self._head_parts: deque[float] = deque(maxlen=WINDOW)  # as steps had them
        self._decision: tuple[Tensor, Work] | None = None

    def follow(
        self, by_rank: Sequence[StepStats], next_step: int, say: Callable[[str], None]
    ) -> None:
        """Take in a step's figures. `apply` follows before `next_step`. Collective."""
        self.apply()  # before an evaluation or a save two steps' figures come in
        # Whether anything changes; rows by rank; the lm_head's work by rank.
        decision = torch.zeros(1 + 2 * len(by_rank), dtype=torch.float64)
        if self._comm.rank == 0:
            change = self._propose(by_rank)
            if change is not None:
                decision[:] = torch.tensor([1, *change.now.rows, *change.now.lm_head])
                self._tell(change, next_step, say)
        pending = self._comm.broadcast(decision, 0, "the rows of the next step", control=True)
        self._decision = decision, pending

    def apply(self) -> None:
        """What rank 0 has decided holds from the next step on. Collective."""
        if self._decision is None:
            return
        (decision, pending), self._decision = self._decision, None
        pending.wait()
        changed, *figures = decision.tolist()
        if changed:
            ranks = len(figures) // 2
            self._trainer.assign([round(count) for count in figures[:ranks]], figures[ranks:])

    def _propose(self, by_rank: Sequence[StepStats]) -> Reassignment | None:
        if self._balancer.head_part is not None:
            self._head_parts += self._measured_head_parts(by_rank)
        if self._head_parts:
            self._balancer.head_part = median(self._head_parts)
        self._speeds.observe([self._step_of(rank, stats) for rank, stats in enumerate(by_rank)])
        return self._balancer.propose(self._speeds.costs() if self._speeds.known else None)

    def _measured_head_parts(self, by_rank: Sequence[StepStats]) -> list[float]:
        """Of a row's time, what the lm_head takes on each rank that has rows and a part of it.

        The model's FLOPs are a first guess: a tenth off moves as much work wrongly.
        """
        found = []
        for stats in by_rank:
            layers_s = stats.compute_s - stats.fixed_s - stats.head_s
            head_tokens = stats.tokens + stats.extra_tokens
            if stats.tokens and head_tokens and stats.head_s > 0 and layers_s > 0:
                row_s, head_s = layers_s / stats.tokens, stats.head_s / head_tokens
                found.append(head_s / (head_s + row_s))
        return found

    def _step_of(self, rank: int, stats: StepStats) -> RankStep:
        # A rank that owns no matrix waits for all of them: that is part of what a step costs it.
        # What owners stand still for may be a slower rank's doing.
        fixed_s = 0.0 if rank in self._owners else stats.comm_s
        rows = stats.tokens // self._row_tokens
        extra = (self._balancer.head_part or 0.0) * stats.extra_tokens / self._row_tokens
        return RankStep(rows, rows + extra, stats.compute_s + fixed_s, stats.fixed_s + fixed_s)

    def _tell(self, change: Reassignment, next_step: int, say: Callable[[str], None]) -> None:
        """The journal, and people."""
        self._folder.event(
            "shares",
            step=next_step,
            rows=change.now.rows,
            before=change.before.rows,
            lm_head=change.now.lm_head if self._balancer.head_part else None,
            why=change.why,
            rank=change.rank,
            step_s=change.step_s,
            new_step_s=change.new_step_s,
            row_s=[cost.row_s for cost in change.costs],
            fixed_s=[cost.fixed_s for cost in change.costs],
        )
        say(describe_change(change, self._names))
        for rank, rows in enumerate(change.now.rows):
            if rows == 0 and rank not in self._said_idle:
                self._said_idle.add(rank)
                say(
                    f"{self._names[rank]} computes no rows: one takes it "
                    f"{format_duration(change.costs[rank].step_s(1))}, all of them without it "
                    f"{format_duration(change.new_step_s)}. Leave it at home, or give steps more "
                    "rows (--total-batch-size)."
                )

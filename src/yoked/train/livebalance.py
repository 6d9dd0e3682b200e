"""Live balance in a run: figures in, rows to the trainer, changes to the journal and to people."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from yoked.train.balance import Balancer, Change, HeadRule, Seen
from yoked.train.runfolder import RunFolder
from yoked.train.session import Session
from yoked.train.shares import consecutive
from yoked.train.trainer import StepStats, Trainer
from yoked.units import format_duration


class LiveBalance:
    """Follows a run step by step; every rank has one, and all decide the same."""

    def __init__(self, session: Session, trainer: Trainer, folder: RunFolder) -> None:
        self._trainer, self._folder = trainer, folder
        self._row_tokens = session.resolved.max_seq_len
        self._names = rank_names([host["name"] for host in session.hosts])
        self._left_at_home: set[int] = set()
        self._said_evened = False
        whole_rows = session.config.balance == "rows"
        # NCCL pairs messages by their order, and GPUs of one kind have little to even out.
        evens = session.wire.device_group is None and not whole_rows
        self._evens = evens
        self._work = trainer.evening.work
        self._owners = set(trainer.layout.owners.values())
        trainer.handovers.live = evens and trainer.head_rank is None
        self._balancer = Balancer(
            [len(rows) for rows in trainer.ranges],
            session.shares,
            trainer.evening if evens else None,
            trainer.head_rank,
            head_rule(session),
        )

    def follow(
        self, by_rank: Sequence[StepStats], next_step: int, say: Callable[[str], None]
    ) -> None:
        """Take in a step's figures; what they change holds from `next_step` on.

        Collective: all ranks call this with the same figures before the same step.
        """
        change = self._balancer.observe(
            [self._seen(rank, stats) for rank, stats in enumerate(by_rank)]
        )
        if change is None:
            return
        trainer = self._trainer
        trainer.reshare(consecutive(change.rows), change.handovers)
        moves = change.head_rank != trainer.head_rank
        if moves:
            trainer.place_head(change.head_rank)
            trainer.handovers.live = self._evens and change.head_rank is None
        self._folder.event(
            "shares",
            step=next_step,
            rows=change.rows,
            before=change.before,
            why=change.why,
            rank=change.rank,
            step_s=change.step_s,
            new_step_s=change.new_step_s,
            handovers=[dataclasses.astuple(each) for each in change.handovers],
            head_rank=change.head_rank,
            row_s=[cost.row_s for cost in change.costs],
            fixed_s=[cost.fixed_s for cost in change.costs],
        )
        if change.why == "evened":
            if not self._said_evened:
                say(describe_handovers(change, self._names))
            self._said_evened = True
        elif change.why not in ("trial", "tried"):
            say(describe_change(change, self._names))
            if moves:
                say(describe_head(change.head_rank, self._names))
            self._name_idle(change, say)

    def _seen(self, rank: int, stats: StepStats) -> Seen:
        # Who owns no matrix waits for all of them: that is part of what a step costs it. What
        # others stand still for may be a slower rank's doing.
        owns = rank in self._owners
        fixed_s = 0.0 if owns else stats.comm_s
        return Seen(
            stats.tokens // self._row_tokens,
            stats.compute_s + fixed_s,
            stats.fixed_s + fixed_s,
            self._work(stats.extra_tokens),
            stats.head_s,
            (stats.tokens + stats.extra_tokens) / self._row_tokens,
        )

    def _name_idle(self, change: Change, say: Callable[[str], None]) -> None:
        """Say once of each rank that it is too slow to help."""
        for rank, rows in enumerate(change.rows):
            if rows == 0 and rank not in (*self._left_at_home, change.head_rank):
                self._left_at_home.add(rank)
                say(
                    f"{self._names[rank]} computes no rows: one takes it "
                    f"{format_duration(change.costs[rank].of(1))}, all of them without it "
                    f"{format_duration(change.new_step_s)}. Leave it at home, or give steps more "
                    "rows (--total-batch-size). It is tried again now and then."
                )


def head_rule(session: Session) -> HeadRule:
    """Where `--lm-head auto` has it on all ranks or on one, that may change."""
    about = session.about_head
    moves = session.config.lm_head == "auto" and session.lm_head.value != "divided"
    return HeadRule(about.part, about.by_speeds if moves else None)


def rank_names(hosts: Sequence[str]) -> list[str]:
    """The host of each rank, with the rank where the host has several."""
    return [
        host if hosts.count(host) == 1 else f"{host} (rank {rank})"
        for rank, host in enumerate(hosts)
    ]


def describe_change(change: Change, names: Sequence[str]) -> str:
    """One line for people, such as `laptop slows: 26:6 -> 29:3 rows`."""
    before, rows = (":".join(map(str, counts)) for counts in (change.before, change.rows))
    why = "by the steps measured"
    if change.rank is not None and change.why in ("slower", "faster"):
        verb = "slows" if change.why == "slower" else "is faster"
        why = f"{names[change.rank]} {verb}"
    return f"{why}: {before} -> {rows} rows"


def describe_head(head_rank: int | None, names: Sequence[str]) -> str:
    """One line for people of where the lm_head is from now on."""
    if head_rank is None:
        return "every rank has the lm_head again: for one alone it has become too much"
    return f"{names[head_rank]} alone has the lm_head now: the others send it hidden states"


def describe_handovers(change: Change, names: Sequence[str]) -> str:
    """One line for people, such as `finer than rows: desk computes the lm_head of 96 tokens of
    laptop (steps 2% shorter)`.
    """
    each = [
        f"{names[one.helper]} computes the lm_head of {one.tokens:,} tokens of {names[one.source]}"
        for one in change.handovers
    ]
    shorter = f"steps {1 - change.new_step_s / change.step_s:.1%} shorter; followed as speeds vary"
    return f"finer than rows: {', '.join(each) or 'nothing is handed over'} ({shorter})"


def idle_note(rows: Sequence[int], shares: Sequence[float], names: Sequence[str]) -> str | None:
    """What to say at the start of ranks without rows; None where all have some.

    shares: what was asked for, or the speeds, by rank.
    """
    idle = [rank for rank, count in enumerate(rows) if not count]
    if not idle:
        return None
    step = "1 row" if sum(rows) == 1 else f"{sum(rows)} rows"
    if len(set(shares)) == 1:
        many = f"rank {idle[0]} has" if len(idle) == 1 else f"{len(idle)} ranks have"
        return (
            f"a step has {step} for {len(rows)} ranks: {many} none "
            "(a larger --total-batch-size would give them work)"
        )
    who = ", ".join(names[rank] for rank in idle)
    return f"by these shares {who} computes none of a step's {step}"

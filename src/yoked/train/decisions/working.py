"""Which ranks take part in a run: hosts that make its steps longer sit out.

A step is predicted with all hosts and with the faster ones alone, as `yoked plan` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import EXACT, best_rows, predict_heads
from yoked.costmodel.work import Network
from yoked.errors import UsageError
from yoked.units import format_duration

ALL = "all"
# A host sits out, or comes back, where the step is foreseen to be so many times shorter: what is
# foreseen from FLOP/s may be a tenth off.
WORTH_SAYING = 1.2


@dataclass(frozen=True)
class Gain:
    """What a step is foreseen to take with the ranks that take part, and with those of them, or
    more, that make it shortest.

    ranks: these, by number; those that take part where none are better by WORTH_SAYING, or without
    ranks that compute no row.
    """

    ranks: tuple[int, ...]
    now_s: float
    step_s: float


@dataclass(frozen=True)
class WorkQuestion:
    """What the answer rests on. ranks: all, as fast as they were measured. syncs: that the run may
    choose from, of which the fastest counts. rows: of a step. keep: hosts that take part whatever
    they add.
    """

    shape: ModelShape
    ranks: Sequence[RankCost]
    network: Network
    syncs: Collection[str]
    rows: int
    device_batch_size: int
    keep: Collection[str]
    _steps: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def first_host(self) -> str:
        """That of rank 0, which has the run's folder."""
        return self.ranks[0].host

    def gain(self, staying: Collection[str], now: Collection[int] | None = None) -> Gain:
        """Which ranks a step should be left to: the slowest hosts are left out in turn.

        staying: hosts that are not left out. now: the ranks that take part; None: all.
        """

        def order(host: str) -> tuple[bool, float]:
            speed = sum(cost.rows_per_s for cost in self.ranks if cost.host == host)
            return host in staying, speed

        hosts = sorted({cost.host for cost in self.ranks}, key=order)
        most_out = min(len(hosts) - 1, sum(host not in staying for host in hosts))
        every = range(len(self.ranks))
        taking_part = tuple(every if now is None else sorted(now))
        now_s, counts = self._step(taking_part)
        with_rows = {rank for rank, count in zip(taking_part, counts, strict=True) if count}
        best, best_s = taking_part, now_s
        for out in range(most_out + 1):
            some = tuple(rank for rank in every if self.ranks[rank].host in hosts[out:])
            # Whoever computes no row need cost no more than nothing to be left out.
            enough = 1.0 if with_rows <= {*some} <= {*taking_part} else WORTH_SAYING
            took_s, _ = self._step(some)
            if some != taking_part and took_s * enough <= now_s and took_s <= best_s:
                best, best_s = some, took_s
        return Gain(best, now_s, best_s)

    def _step(self, some: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """Seconds of a step of these ranks by the fastest sync, and their rows. Foreseen once."""
        if some not in self._steps:
            those = [self.ranks[rank] for rank in some]
            rows = best_rows(self.rows, those, self.device_batch_size)
            hosts = {cost.host for cost in those}
            ports = {host: port for host, port in self.network.ports.items() if host in hosts}
            network = replace(self.network, ports=ports if len(hosts) > 1 else {})
            step_s = min(
                forecast.step_s
                for sync in (self.syncs if len(those) > 1 else (EXACT,))
                for _, forecast in predict_heads(
                    self.shape,
                    those,
                    network,
                    sync=sync,
                    rows=rows,
                    device_batch_size=self.device_batch_size,
                ).values()
            )
            self._steps[some] = step_s, rows
        return self._steps[some]

    def hosts(self, ranks: Collection[int], *, without: bool = False) -> list[str]:
        """Of these ranks, in order; without: all the others."""
        named = dict.fromkeys(cost.host for cost in self.ranks)
        those = {self.ranks[rank].host for rank in ranks}
        return [host for host in named if (host in those) != without]


@dataclass(frozen=True)
class Working:
    """ranks: those that take part, by number, rank 0 among them. notes: what to say of hosts that
    add nothing.
    """

    ranks: tuple[int, ...]
    notes: tuple[str, ...] = ()


def kept_hosts(keep: str | None, hosts: Sequence[str]) -> Collection[str]:
    """What --keep names. Raises UsageError for a host that is not there."""
    if keep is None:
        return ()
    if keep == ALL:
        return set(hosts)
    named = [name.strip() for name in keep.split(",")]
    for name in named:
        if name not in hosts:
            raise UsageError(
                f"--keep {keep}: no host of this run is called {name!r}",
                fix=f"name some of {', '.join(dict.fromkeys(hosts))}, or {ALL}",
            )
    return named


def choose_working(question: WorkQuestion) -> Working:
    """Who takes part, before the first step. Pure."""
    bound = question.gain({*question.keep, question.first_host})
    # Without those too that take part for another reason.
    free = question.gain((), bound.ranks)
    notes = []
    if out := question.hosts(bound.ranks, without=True):
        sits = "It sits" if len(out) == 1 else "They sit"
        part = f"{sits} out; --keep {','.join(out)} has {_them(out)} take part"
        notes.append(f"{_adds_nothing(out, bound)}. {part}")
    useless = [host for host in question.hosts(free.ranks, without=True) if host not in out]
    if useless and question.first_host in {*useless} - {*question.keep}:
        better = question.ranks[free.ranks[0]].host
        notes.append(
            f"{_adds_nothing(useless, free)}. {question.first_host} takes part because the run's "
            f"folder is there: make {better} the first host in the fleet's file"
        )
    elif useless:
        notes.append(f"{_adds_nothing(useless, free)}. --keep has {_them(useless)} take part")
    return Working(bound.ranks, tuple(notes))


def worth_coming_back(
    question: WorkQuestion, working: Collection[int], speeds: Sequence[RankCost]
) -> str | None:
    """What to say of ranks with which a step would be shorter now; None: it would not.

    working: the ranks that take part. speeds: costs of ranks that sit out, as they are now.
    """
    now = {cost.host: cost for cost in speeds}
    ranks = [now.get(cost.host, cost) for cost in question.ranks]
    gain = replace(question, ranks=ranks).gain(question.hosts(working), working)
    back = [host for host in question.hosts(gain.ranks) if host not in question.hosts(working)]
    if not back:
        return None
    without, with_them = format_duration(gain.now_s), format_duration(gain.step_s)
    comes = "It comes" if len(back) == 1 else "They come"
    return (
        f"{', '.join(back)}: as fast as now, a step takes {with_them} with {_them(back)}, "
        f"{without} without. {comes} back"
    )


def _adds_nothing(hosts: Sequence[str], gain: Gain) -> str:
    add = "adds" if len(hosts) == 1 else "add"
    with_all, without = format_duration(gain.now_s), format_duration(gain.step_s)
    return (
        f"{', '.join(hosts)} {add} nothing: a step takes {with_all} with {_them(hosts)}, "
        f"{without} without"
    )


def _them(hosts: Sequence[str]) -> str:
    return "it" if len(hosts) == 1 else "them"

"""Which ranks take part in a run: hosts that make its steps longer sit out.

A step is predicted with all hosts and with the faster ones alone, as `yoked plan` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import Gain, worth_having
from yoked.costmodel.work import Network
from yoked.errors import UsageError
from yoked.units import format_duration

ALL = "all"


@dataclass(frozen=True)
class WorkQuestion:
    """What the answer rests on. ranks: all, as fast as they were measured. syncs: that the run may
    choose from. rows: of a step. keep: hosts that take part whatever they add.
    """

    shape: ModelShape
    ranks: Sequence[RankCost]
    network: Network
    syncs: Collection[str]
    rows: int
    device_batch_size: int
    keep: Collection[str]

    @property
    def first_host(self) -> str:
        """That of rank 0, which has the run's folder."""
        return self.ranks[0].host

    def gain(self, staying: Collection[str], now: Collection[int] | None = None) -> Gain:
        """Which ranks a step should be left to. now: those that take part; None: all."""
        return worth_having(
            self.shape,
            self.ranks,
            self.network,
            syncs=self.syncs,
            rows=self.rows,
            device_batch_size=self.device_batch_size,
            now=now,
            staying=staying,
        )

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
        sits, them = ("It sits", "it") if len(out) == 1 else ("They sit", "them")
        part = f"{sits} out; --keep {','.join(out)} has {them} take part"
        notes.append(f"{_adds_nothing(out, bound)}. {part}")
    useless = [host for host in question.hosts(free.ranks, without=True) if host not in out]
    if useless and question.first_host in {*useless} - {*question.keep}:
        better = question.ranks[free.ranks[0]].host
        notes.append(
            f"{_adds_nothing(useless, free)}. {question.first_host} takes part because the run's "
            f"folder is there: make {better} the first host in yoked.toml"
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

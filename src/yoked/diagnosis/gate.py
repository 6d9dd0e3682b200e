"""Where the ranks' time goes in a run that gets on, and who sets its pace: a rank, or the network.

Told by main threads: one that is on a core computes, and one that neither is nor wants to be waits
for others, for the network or for data. All threads together say less: four that compute in half
of the time and two that always do use as much. Pure; standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from yoked.diagnosis.activity import PATIENT, Activity, own_frame
from yoked.diagnosis.history import RunHistory
from yoked.diagnosis.slow import held_back
from yoked.diagnosis.vitals import RankVitals
from yoked.diagnosis.waits import wait_of
from yoked.diagnosis.words import Words, held_back_words

# rank: some are busy while the others wait. data: some wait for data. network: all ranks wait
# in most of the time. nobody: all are busy for as long.
Gate = Literal["rank", "data", "network", "nobody"]
# Of the time: by less nobody is ahead, and a rank that is busy for less waits in most of it.
_AHEAD, _MOST = 0.1, 0.5
_LOADING = 0.3
# What is looked at, and at least so much of it.
_SPAN_S, _SPAN_STEPS, _SEEN = 20.0, 4.0, 0.6
_MOMENT_S = 2.0
_LONG_S, _LONG_STEPS = 3.0, 20.0
# Other threads compute where the main one has less of a core than the first figure, and they have
# more than the second.
_IDLE, _OTHERS_COMPUTE = 0.02, 0.5


@dataclass(frozen=True)
class RankShare:
    """A rank, in shares of the time. computes, waits: None: unknown. waits_for_core: it could run,
    and had no core. waits: for others, the network or data. gpu: it has one, whose time the kernel
    does not tell.
    """

    rank: int
    computes: float | None
    waits_for_core: float
    waits: float | None
    loads_data: float
    gpu: bool


@dataclass(frozen=True)
class Shares:
    """A run over some twenty seconds. step_s: None: the program tells of no steps. gate: None:
    unknown; gating: the ranks of "rank" and "data"; ahead: how much longer they are busy than any
    other, of the time; since_s: for how long it has been so; why, fix: what holds their hosts back.
    """

    step_s: float | None
    ranks: tuple[RankShare, ...]
    gate: Gate | None
    gating: tuple[int, ...] = ()
    ahead: float | None = None
    since_s: float = 0.0
    why: str = ""
    fix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Busy:
    """A rank that is at something else than training. at: a line of its program, or empty;
    waits_in: the kernel's function where it waits, or empty.
    """

    rank: int
    doing: Activity | Literal["waiting for others", "at work"]
    for_s: float
    at: str
    waits_in: str = ""


def busy_ranks(history: RunHistory) -> Iterator[Busy]:
    """Those that save, evaluate, compile and the like for longer than a moment; and all of a run
    in which no step has ended for long.
    """
    long_s = max(_LONG_S, _LONG_STEPS * (history.step_s or 0.0))
    for _, vitals in history.alive():
        seen = history.ranks[vitals.rank]
        if vitals.recorded is None:
            continue
        frame = own_frame(vitals.recorded.frames)
        at = "" if frame is None else f"{frame.file}:{frame.line} in {frame.function}"
        if seen.doing in PATIENT:
            for_s = history.now_s - seen.since_s
            if for_s >= _MOMENT_S:
                waits_in = vitals.waits_in if vitals.state == "S" else ""
                yield Busy(vitals.rank, seen.doing, for_s, at, waits_in)
            continue
        for_s = history.now_s - seen.taken[-1].ended_s if seen.taken else 0.0
        if for_s < long_s:
            continue
        if wait_of(vitals) is not None:
            yield Busy(vitals.rank, "waiting for others", for_s, at)
        else:
            loads = seen.doing == "loading data"
            yield Busy(vitals.rank, "loading data" if loads else "at work", for_s, at)


def shares_of(history: RunHistory) -> Shares | None:
    """None: too little is known of it, or it did something else than train lately."""
    span_s = max(_SPAN_S, _SPAN_STEPS * (history.step_s or 0.0))
    found = dict[int, RankShare]()
    for host in history.hosts:
        looks = host.since(history.now_s, span_s)
        if len(looks) < 3:
            return None
        first_s, last_s = looks[0][0], looks[-1][0]
        if last_s - first_s < _SEEN * span_s:
            return None
        for rank in host.place.ranks:
            seen = [each for _, look in looks for each in look.ranks if each.rank == rank]
            doing = history.ranks[rank].did(first_s, last_s)
            share = _share(seen, doing, last_s - first_s) if len(seen) == len(looks) else None
            if share is None:
                return None
            found[rank] = share
    shares = tuple(found[rank] for rank in sorted(found))
    gate, gating, ahead = _gate(shares)
    if history.gate is None or history.gate[0] != (gate, gating):
        # It has been so all over the stretch.
        history.gate = ((gate, gating), history.now_s - span_s)
    why, fix = _why(history, gating if gate == "rank" else ())
    return Shares(
        history.step_s, shares, gate, gating, ahead, history.now_s - history.gate[1], why, fix
    )


def _why(history: RunHistory, gating: Sequence[int]) -> Words:
    """What holds the hosts of these ranks back, by what is known of them alone."""
    found = []
    for node in dict.fromkeys(history.node_of(rank) for rank in gating):
        host = history.hosts[node]
        if host.last is not None and host.last.machine is not None:
            held = held_back(None, host.last.machine, delayed=False)
            found.append(held_back_words(held, host.place.host))
    whys = [each.what for each in found if each.what]
    return Words("; ".join(whys), tuple(line for each in found for line in each.fix))


def _share(
    seen: Sequence[RankVitals], doing: Sequence[Activity], took_s: float
) -> RankShare | None:
    """Of the looks at one rank; None: it is not one process, or did something else than train."""
    first, last = seen[0], seen[-1]
    if first.pid != last.pid or first.recorded is None or any(each in PATIENT for each in doing):
        return None
    computes = _computes(first, last, took_s)
    delayed = min(1.0, (last.main_delayed_s - first.main_delayed_s) / took_s)
    waits = None if computes is None else max(0.0, 1 - computes - delayed)
    loads = doing.count("loading data") / len(doing)
    return RankShare(last.rank, computes, delayed, waits, loads, last.gpu)


def _computes(first: RankVitals, last: RankVitals, took_s: float) -> float | None:
    """Share of the time in which a rank's main thread was on a core; None: that says nothing."""
    if first.main_cpu_s is None or last.main_cpu_s is None or last.gpu:
        # While a GPU computes, a thread may wait on a core.
        return None
    share = (last.main_cpu_s - first.main_cpu_s) / took_s
    others = (last.cpu_s - first.cpu_s) / took_s - share
    return None if share < _IDLE and others > _OTHERS_COMPUTE else min(1.0, share)


def _gate(shares: Sequence[RankShare]) -> tuple[Gate | None, tuple[int, ...], float | None]:
    """What sets the pace, which ranks, and by how much they are ahead."""
    busy = {each.rank: 1 - each.waits for each in shares if each.waits is not None}
    if len(busy) < len(shares) or len(shares) < 2:
        return None, (), None
    most = max(busy.values())
    first = tuple(rank for rank in busy if busy[rank] > most - _AHEAD)
    if most >= _MOST:
        others = [busy[rank] for rank in busy if rank not in first]
        return ("rank", first, most - max(others)) if others else ("nobody", (), None)
    loads = tuple(each.rank for each in shares if each.loads_data >= _LOADING)
    return ("data" if loads else "network"), loads, None

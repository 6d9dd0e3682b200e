"""Where the ranks' time goes in a run that gets on, and who sets its pace: a rank, or the network.

Told by main threads: one that is on a core computes, and one that neither is nor wants to be waits
for others, for the network or for data. All threads together say less: four that compute in half
of the time and two that always do use as much. Pure; standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from yoked.diagnosis.history import RankPace, RunHistory
from yoked.diagnosis.pace import LEARN_S, pace_of, window_s

# rank: some are busy while the others wait. data: some wait for data. network: all ranks wait
# in most of the time. nobody: all are busy for as long.
Gate = Literal["rank", "data", "network", "nobody"]
# Of the time: by less nobody is ahead, and a rank that is busy for less waits in most of it.
_AHEAD, _MOST = 0.1, 0.5
_LOADING = 0.3


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
    other, of the time; since_s: for how long it has been so.
    """

    step_s: float | None
    ranks: tuple[RankShare, ...]
    gate: Gate | None
    gating: tuple[int, ...] = ()
    ahead: float | None = None
    since_s: float = 0.0


def shares_of(history: RunHistory) -> Shares | None:
    """None: too little is known of it, or it did something else than train lately."""
    span_s = max(LEARN_S, window_s(history))
    pace = pace_of(history, span_s)
    if pace is None:
        return None
    shares = tuple(_share(rank, pace.ranks[rank]) for rank in sorted(pace.ranks))
    gate, gating, ahead = _gate(shares)
    if history.gate is None or history.gate[0] != (gate, gating):
        # It has been so all over the stretch.
        history.gate = ((gate, gating), history.now_s - span_s)
    return Shares(pace.step_s, shares, gate, gating, ahead, history.now_s - history.gate[1])


def _share(rank: int, pace: RankPace) -> RankShare:
    computes = pace.computes
    waits = None if computes is None else max(0.0, 1 - computes - pace.delayed)
    return RankShare(rank, computes, pace.delayed, waits, pace.loading, pace.gpu)


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

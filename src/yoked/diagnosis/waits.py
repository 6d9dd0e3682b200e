"""Who waits for whom: the ranks that are blocked, and those that the others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from yoked.diagnosis.activity import activity_of, may_wait_in_cpp
from yoked.diagnosis.history import RunHistory
from yoked.diagnosis.vitals import RankVitals

# A rank is blocked that has waited so long, and so many usual steps.
BLOCKED_S = 1.5
BLOCKED_STEPS = 4.0
# A rank that records nothing for so long runs no Python: what it was about before says nothing.
NATIVE_S = 3.0
# A rank that waits uses less, with its recorder.
_IDLE_CORES, _LOOK_BACK_S = 0.1, 1.0


@dataclass(frozen=True)
class Wait:
    """A blocked rank. what: it waits for; number: of the collective in its group, if it is one;
    ranks: whose part is missing, by the rank itself; empty: it cannot tell.
    """

    rank: int
    what: str
    age_s: float
    group: str = ""
    number: int | None = None
    ranks: tuple[int, ...] = ()


def patience_s(history: RunHistory) -> float:
    """For how long a rank may wait in this run and nothing is wrong."""
    return max(BLOCKED_S, BLOCKED_STEPS * (history.step_s or 0.0))


def waits_of(history: RunHistory) -> dict[int, Wait]:
    """The blocked ranks."""
    limit_s = patience_s(history)
    found = {}
    for node, vitals in history.alive():
        wait = wait_of(vitals)
        if wait is None or _computes(history, node, vitals):
            continue
        # What came of a silent host is old by as much.
        age_s = min(wait.age_s + history.silent_s(node), history.stands_s(vitals.rank))
        if age_s >= limit_s:
            found[vitals.rank] = replace(wait, age_s=age_s)
    return found


def _computes(history: RunHistory, node: int, vitals: RankVitals) -> bool:
    """Whether a rank that may wait in C++ used its CPU lately, or it is not known."""
    if vitals.recorded is None or not may_wait_in_cpp(vitals.recorded):
        return False
    before = history.hosts[node].rank_before(vitals, history.now_s, _LOOK_BACK_S)
    return before is None or vitals.cpu_s - before[1].cpu_s > _IDLE_CORES * _LOOK_BACK_S


def wait_of(vitals: RankVitals) -> Wait | None:
    """What a rank waits for, however short; None: it waits for no other rank."""
    recorded = vitals.recorded
    if recorded is None or recorded.age_s >= NATIVE_S:
        return None
    doing = activity_of(vitals)
    if doing == "debugged":
        return None
    if recorded.awaits is not None:
        told = recorded.awaits
        return Wait(vitals.rank, told.what, told.age_s + recorded.age_s, ranks=told.ranks)
    if doing != "waiting for peers":
        return None
    age_s = recorded.frames_age_s + recorded.age_s
    for group in recorded.groups or ():
        if group.flying:
            # Gloo carries them out in their order, so the first one holds the others up.
            first = min(group.flying, key=lambda one: one.number)
            return Wait(vitals.rank, first.op, age_s, group.name, first.number)
    return Wait(vitals.rank, "another rank", age_s)


def awaited_by(waits: Mapping[int, Wait], ranks: frozenset[int]) -> dict[int, set[int]]:
    """By rank: who waits for it, as far as the waiting ones can tell."""
    found: dict[int, set[int]] = defaultdict(set)
    for wait in waits.values():
        for rank in wait.ranks or ranks - {wait.rank}:
            found[rank].add(wait.rank)
    return dict(found)


def roots(waits: Mapping[int, Wait], ranks: frozenset[int]) -> Iterator[int]:
    """The ranks that others wait for and that wait for nobody."""
    for rank in sorted(awaited_by(waits, ranks)):
        if rank not in waits:
            yield rank


def behind(waits: Mapping[int, Wait]) -> set[int]:
    """Of ranks that are all blocked in one group: those in an earlier collective than others."""
    numbers: dict[str, dict[int, int]] = defaultdict(dict)
    for wait in waits.values():
        if wait.number is not None:
            numbers[wait.group][wait.rank] = wait.number
    found = set[int]()
    for by_rank in numbers.values():
        least, most = min(by_rank.values()), max(by_rank.values())
        if least < most:
            found |= {rank for rank, number in by_rank.items() if number == least}
    return found

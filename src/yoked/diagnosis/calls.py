"""Which rank made a collective that no other made, by the calls that ranks made last.

Gloo pairs calls by their order alone: a rank that leaves one out is in another call than its peers
from then on. Pure; standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from yoked.core.schema import Constraint, Count

_MOST_NEW = 2
_Call = Annotated[str, Constraint("at most 200 characters", lambda text: len(text) <= 200)]


@dataclass(frozen=True)
class Calls:
    """The last collectives of a rank in a group, the oldest first, as "all_reduce of [1000] Float".

    number: of the last, counted from the group's start.
    """

    group: _Call
    number: Count
    calls: tuple[_Call, ...]

    def call(self, number: int) -> str | None:
        """A call by its number; None: it is not among these."""
        at = number - self.first
        return self.calls[at] if 0 <= at < len(self.calls) else None

    @property
    def first(self) -> int:
        """The number of the oldest that is known."""
        return self.number - len(self.calls) + 1


@dataclass(frozen=True)
class Mismatch:
    """ranks: whose call fits no other's. calls: of the ranks that are known, by rank."""

    ranks: tuple[int, ...]
    number: int
    calls: Mapping[int, str]

    @property
    def words(self) -> str:
        """What the first of the ranks did, for people."""
        rank = self.ranks[0]
        own = self.calls.get(rank)
        others = {call: each for each, call in self.calls.items() if call != own}
        there = " and ".join(f"rank {each}'s {call}" for call, each in others.items())
        if own is None:
            return f"its collective {self.number} is another than {there}"
        if not others:
            return f"its collective {self.number} is {own}, and another rank's does not fit it"
        return f"its collective {self.number} is {own}, and {there}"


def mismatch_of(calls: Mapping[int, Calls], unknown: Iterable[int] = ()) -> Mismatch | None:
    """The first call that does not fit; None: all that is known fits.

    calls: by rank; those of another group than the lowest rank's are left aside. unknown: ranks
    that ended in a call without leaving it. Such a rank is to blame where the others did what they
    always do.
    """
    absent = tuple(sorted(unknown))
    group = next((calls[rank].group for rank in sorted(calls)), None)
    calls = {rank: known for rank, known in calls.items() if known.group == group}
    number = _first_unlike(calls)
    if number is None:
        if not absent or not calls:
            return None
        # It may have made more calls before it heard that one does not fit.
        number = min(_first_new(known) or known.number for known in calls.values())
    said = {rank: call for rank, known in calls.items() if (call := known.call(number))}
    if not said:
        return None
    camps = _camps(said)
    unheard_of = {rank for rank in said if _is_new(calls[rank], number)}
    if len(camps) == 1 and absent:
        alone = len(said) == 1
        ranks = tuple(sorted(said)) if alone and unheard_of else absent
        return Mismatch(ranks, number, said)
    # The fewest; of equal camps the one whose call never followed the one before it.
    fewest = min(
        camps, key=lambda ranks: (len(ranks), not unheard_of.issuperset(ranks), 0 in ranks)
    )
    return Mismatch(tuple(sorted(fewest)), number, said)


def _first_unlike(calls: Mapping[int, Calls]) -> int | None:
    if len(calls) < 2:
        return None
    first = max(known.first for known in calls.values())
    last = max(known.number for known in calls.values())
    for number in range(first, last + 1):
        made = {call for known in calls.values() if (call := known.call(number))}
        if len(made) > 1:
            return number
    return None


def _camps(said: Mapping[int, str]) -> list[Sequence[int]]:
    found: dict[str, list[int]] = {}
    for rank, call in said.items():
        found.setdefault(call, []).append(rank)
    return list(found.values())


def _first_new(known: Calls) -> int | None:
    """The first of its later calls that never followed the one before it; None: there is none.

    One call too few, too many or of another shape makes one or two such pairs. More of them are of
    a program whose steps have more calls than are known.
    """
    half = known.first + len(known.calls) // 2
    new = [number for number in range(half, known.number + 1) if _is_new(known, number)]
    return new[0] if 0 < len(new) <= _MOST_NEW else None


def _is_new(known: Calls, number: int) -> bool:
    """Whether this call never followed the one before it, in what is known of this rank."""
    made = [known.call(each) for each in range(known.first, number + 1)]
    pairs = list(pairwise(made))
    return bool(pairs) and pairs[-1] not in pairs[:-1]

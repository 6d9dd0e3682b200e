"""The Python stacks of ranks, as a host tells of them, and those that are equal put together.

Standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from yoked.core.schema import Count, decode
from yoked.diagnosis.vitals import Age, Text

# File, line and function.
Place = tuple[Text, Count, Text]
# A record is renewed four times a second: an older one is of a rank that cannot write any.
STALE_S = 1.5


@dataclass(frozen=True)
class Thread:
    """A thread. frames: the innermost first."""

    name: Text
    main: bool
    frames: tuple[Place, ...]


@dataclass(frozen=True)
class RankStacks:
    """A rank. pid: None: its process is not there. state, waits_in: the kernel's, or empty.

    age_s: of the stacks; None: there are none. at_line_s: for how long the main thread stands
    there. threads: the main one first; that one alone where the rank could not be asked.
    """

    rank: Count
    pid: Count | None
    state: Text
    waits_in: Text
    age_s: Age | None
    at_line_s: Age | None
    threads: tuple[Thread, ...]

    @property
    def frozen(self) -> bool:
        """Whether it is not known where the rank is now, but where it was."""
        return self.age_s is None or self.age_s > STALE_S


@dataclass(frozen=True)
class Group:
    """Threads with the same stack. ranks: whose; names: of the threads."""

    main: bool
    frames: tuple[Place, ...]
    names: tuple[str, ...]
    ranks: tuple[RankStacks, ...]


def read_stacks(told: Iterable[object]) -> Iterator[RankStacks]:
    """What a host told of its ranks; a rank of which it told something else is left out."""
    for one in told:
        with suppress(ValueError):
            yield decode(RankStacks, one)


def grouped(ranks: Iterable[RankStacks]) -> list[Group]:
    """The stacks of all ranks, equal ones once, main threads first; then by the lowest rank.

    A rank of which only the past is known, or that the kernel does not run, is by itself.
    """
    found: dict[object, list[tuple[RankStacks, Thread]]] = {}
    for rank in sorted(ranks, key=lambda one: one.rank):
        apart = rank.rank if rank.frozen or rank.state in ("D", "T", "t") else None
        # A rank without any is told too.
        for thread in rank.threads or (Thread("", True, ()),):
            found.setdefault((thread.main, thread.frames, apart), []).append((rank, thread))
    groups = [
        Group(
            main=each[0][1].main,
            frames=each[0][1].frames,
            names=tuple(dict.fromkeys(thread.name for _, thread in each)),
            ranks=tuple({rank.rank: rank for rank, _ in each}.values()),
        )
        for each in found.values()
    ]
    return sorted(groups, key=lambda group: (not group.main, group.ranks[0].rank))

"""Faults at random moments, for soak tests.

drawn = draw(["cut", "slow-link HOST 20mbit"], hosts, seed=7, every_s=20, for_s=5, count=10)
with random_faults(lab, drawn) as records:
    ...  # what is tested
# All are healed. `records` say when each began and ended.
"""

from __future__ import annotations

import contextlib
import random
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from yoked.errors import LabError, UsageError, YokedError
from yoked.lab import faults
from yoked.lab.lab import Lab

_T = TypeVar("_T")


@dataclass(frozen=True)
class RandomFault:
    """words: the kind and its arguments. after_s: from the start; for_s: until it is healed."""

    words: tuple[str, ...]
    after_s: float
    for_s: float


@dataclass
class FaultRecord:
    """What became of a fault. began_s, healed_s: by time.monotonic(); None: it did not happen.

    id: the lab's for it. trouble: why it could not be brought about, or healed.
    """

    fault: RandomFault
    id: str = ""
    began_s: float | None = None
    healed_s: float | None = None
    trouble: YokedError | None = None


def draw(
    kinds: Sequence[str],
    hosts: Sequence[str],
    *,
    seed: int,
    every_s: float,
    for_s: float,
    count: int,
) -> list[RandomFault]:
    """Faults in the order of their moments: the same for the same arguments, in every Python.

    kinds: lines as of `yoked lab fault`, in which HOST, and OTHER where two are needed, stand for
    drawn hosts; a bare kind takes one. every_s: the mean time between two; the real one is between
    half and one and a half of it. No host has two at once: one would hide the other. Raises
    UsageError for a kind that needs more hosts than there are.
    """
    dice = random.Random(seed)
    free_from_s = dict.fromkeys(hosts, 0.0)
    found: list[RandomFault] = []
    at_s = 0.0
    for _ in range(count):
        line = shlex.split(_pick(dice, kinds))
        words = line if len(line) > 1 else [*line, "HOST"]
        wanted = [word for word in ("HOST", "OTHER") if word in words]
        if len(wanted) > len(hosts):
            raise UsageError(f"{shlex.join(words)!r} needs {len(wanted)} hosts", fix="name more")
        at_s = round(at_s + every_s * (0.5 + dice.random()), 2)
        if wanted:
            at_s = max(at_s, sorted(free_from_s.values())[len(wanted) - 1])
        drawn: dict[str, str] = {}
        for word in wanted:
            free = [h for h in hosts if free_from_s[h] <= at_s and h not in drawn.values()]
            drawn[word] = _pick(dice, free)
        free_from_s.update(dict.fromkeys(drawn.values(), at_s + for_s))
        found.append(RandomFault(tuple(drawn.get(word, word) for word in words), at_s, for_s))
    return found


def _pick(dice: random.Random, things: Sequence[_T]) -> _T:
    # Python promises only `random()` to give the same numbers in every version.
    return things[int(dice.random() * len(things))]


@contextlib.contextmanager
def random_faults(lab: Lab, drawn: Sequence[RandomFault]) -> Iterator[list[FaultRecord]]:
    """Bring faults about and heal them, in a thread, while the body runs; then heal all.

    Gives a record for each, which grows meanwhile. One that cannot be brought about is passed over.
    Raises LabError at the end for those that could not be healed. If this process is killed, the
    lab of a test goes with it.
    """
    records = [FaultRecord(fault) for fault in drawn]
    # The body may use `lab`, which is of one thread.
    breaker = _Breaker(Lab.open(lab.name))
    over = threading.Event()
    thread = threading.Thread(target=breaker.run, args=(records, over), name="faults")
    thread.start()
    try:
        yield records
    finally:
        over.set()
        thread.join()
        breaker.heal_all()
    if unhealed := [each for each in records if each.began_s is not None and each.trouble]:
        raise LabError(
            "could not be healed: " + "; ".join(shlex.join(each.fault.words) for each in unhealed),
            fix=f"yoked lab heal --lab {lab.name}",
        )


class _Breaker:
    """The faults that are active now, and the lab that has them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._active: dict[str, FaultRecord] = {}

    def run(self, records: Sequence[FaultRecord], over: threading.Event) -> None:
        """Until all moments are past, or it is over."""
        started_s = time.monotonic()
        begins = [(each.fault.after_s, self._begin, each) for each in records]
        ends = [(each.fault.after_s + each.fault.for_s, self._heal, each) for each in records]
        # What ends at a moment makes room for what begins then.
        for at_s, act, record in sorted([*ends, *begins], key=lambda each: each[0]):
            if over.wait(max(0.0, started_s + at_s - time.monotonic())):
                return
            act(record)

    def _begin(self, record: FaultRecord) -> None:
        kind, *args = record.fault.words
        try:
            self._lab.refresh()  # the test may have started hosts anew
            active = faults.apply(self._lab, kind, args, seed=0)
        except YokedError as problem:
            record.trouble = problem
            return
        record.began_s = time.monotonic()
        record.id = active.id
        self._active[active.id] = record

    def _heal(self, record: FaultRecord) -> None:
        """Try once to undo it, if it is active."""
        if self._active.pop(record.id, None) is None:
            return
        try:
            self._lab.refresh()
            if any(each.id == record.id for each in faults.active(self._lab)):
                faults.heal(self._lab, [record.id])
        except YokedError as problem:
            record.trouble = problem
            return
        record.healed_s = time.monotonic()

    def heal_all(self) -> None:
        """Undo what is active, the newest first."""
        for record in reversed(list(self._active.values())):
            self._heal(record)

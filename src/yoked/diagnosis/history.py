"""A run as it was told, over the last minute: vitals of all hosts, each with when it came here.

Reading a run is this one module: diagnosis, and whoever shows a run, stand on it. No clock, no
files: whoever drives it tells the time. Standard library alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from yoked.diagnosis.activity import Activity, activity_of
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.memory import MemoryTrace, Sample
from yoked.diagnosis.vitals import Learning, Machine, RankVitals, Recorded, Vitals

# Steps from which the usual one is learned, and looks that are kept: a minute of two a second.
_STEPS_KEPT = 128
_LOOKS_KEPT = 120
# Looks are taken twice a second: a host that has taken none for so long did not run.
_BREAK_S = 2.0
# A step is known to be usual from so many on.
_STEPS_NEEDED = 4
# What changed between two looks may have done so just after the first.
_LOOK_S = 0.5


@dataclass(frozen=True)
class Place:
    """A host of the run. ranks: those that it has."""

    host: str
    ranks: tuple[int, ...]


@dataclass
class HostHistory:
    """What came of one host. heard_s: when, by the listener's clock."""

    place: Place
    looks: deque[tuple[float, Vitals]] = field(default_factory=lambda: deque(maxlen=_LOOKS_KEPT))

    @property
    def last(self) -> Vitals | None:
        """The newest look; None: none came."""
        return self.looks[-1][1] if self.looks else None

    @property
    def heard_s(self) -> float | None:
        """When the newest came."""
        return self.looks[-1][0] if self.looks else None

    def since(self, now_s: float, span_s: float) -> list[tuple[float, Vitals]]:
        """The looks of the last seconds, and when each came."""
        return [look for look in self.looks if now_s - look[0] <= span_s]

    def before(self, now_s: float, age_s: float) -> tuple[float, Vitals] | None:
        """The newest look of at least that age, and when it came; the oldest where none is."""
        for look in reversed(self.looks):
            if now_s - look[0] >= age_s:
                return look
        return self.looks[0] if self.looks else None

    def rank_before(
        self, rank: RankVitals, now_s: float, age_s: float
    ) -> tuple[float, RankVitals] | None:
        """A rank's process as that look had it, and when; None: it did not."""
        at_s, vitals = self.before(now_s, age_s) or (now_s, None)
        for then in () if vitals is None else vitals.ranks:
            if (then.rank, then.pid) == (rank.rank, rank.pid):
                return at_s, then
        return None


@dataclass(frozen=True)
class Step:
    """A step of a rank. ended_s: by the listener's clock. cpu_s, delayed_s: of all its threads on a
    core, and waiting for one.
    """

    ended_s: float
    took_s: float
    cpu_s: float
    delayed_s: float


@dataclass
class RankHistory:
    """One rank. taken: its last steps, the oldest first. moved_s: when it was last seen to get on:
    another step, another collective, another line. doing, since_s: what it is about, and since
    when; longest_s: for how long it has been at each of what it was about before. learning: as it
    was told last; a rank that has ended keeps it.
    """

    steps: int = 0
    moved_s: float = 0.0
    doing: Activity | None = None
    since_s: float = 0.0
    longest_s: dict[Activity, float] = field(default_factory=dict)
    looks: deque[tuple[float, Activity]] = field(default_factory=lambda: deque(maxlen=_LOOKS_KEPT))
    taken: deque[Step] = field(default_factory=lambda: deque(maxlen=_STEPS_KEPT))
    memory: MemoryTrace = field(default_factory=MemoryTrace)
    learning: Learning | None = None
    _mark: object = None
    _delayed_s: float | None = None

    def take(self, rank: RankVitals, now_s: float) -> None:
        """Learn from a newer look at it."""
        doing = activity_of(rank)
        self.looks.append((now_s, doing))
        recorded = rank.recorded
        if recorded is None:
            return
        self.learning = recorded.learning or self.learning
        if doing != self.doing:
            if self.doing is not None:
                took_s = now_s - self.since_s
                self.longest_s[self.doing] = max(self.longest_s.get(self.doing, 0.0), took_s)
            self.doing, self.since_s = doing, now_s
        # A loop may be met at the same line each time.
        groups = recorded.groups
        started = None if groups is None else {each.name: each.started for each in groups}
        mark = (recorded.steps, started)
        if started is None or mark != self._mark:
            self.moved_s = max(self.moved_s, now_s - recorded.age_s - recorded.frames_age_s)
        if mark != self._mark:
            self._mark = mark
            self.moved_s = max(self.moved_s, now_s - recorded.age_s - _LOOK_S)
        if recorded.steps > self.steps:
            self._take_steps(recorded, rank.delayed_s, now_s)

    def did(self, first_s: float, last_s: float) -> list[Activity]:
        """Its activity at each look from first_s to last_s."""
        return [doing for at_s, doing in self.looks if first_s <= at_s <= last_s]

    def _take_steps(self, recorded: Recorded, delayed_s: float, now_s: float) -> None:
        count = recorded.steps - self.steps
        # How long threads waited for a core is not known of each step.
        each_s = 0.0 if self._delayed_s is None else (delayed_s - self._delayed_s) / count
        ended_s = now_s - recorded.age_s - recorded.stepped_age_s
        found = list[Step]()
        for took_s, cpu_s in zip(recorded.step_s[::-1], recorded.step_cpu_s[::-1], strict=False):
            if len(found) < count:
                found.append(Step(ended_s, took_s, cpu_s, max(0.0, each_s)))
                ended_s -= took_s
        self.taken.extend(reversed(found))
        self.steps, self._delayed_s = recorded.steps, delayed_s

    @property
    def step_s(self) -> float | None:
        """Seconds of a usual step; None: too few were seen."""
        if len(self.taken) < _STEPS_NEEDED:
            return None
        return statistics.median(step.took_s for step in self.taken)


@dataclass(frozen=True)
class RankPace:
    """A rank, per step, as the median has it: seconds of all its threads on a core, and waiting for
    one. loading: share of the looks in which it loaded data.
    """

    cpu_s: float
    delayed_s: float
    loading: float

    @property
    def own_s(self) -> float:
        """Its own time of a step."""
        return self.cpu_s + self.delayed_s


@dataclass(frozen=True)
class LinkPace:
    """What a host sent on a link. lost: share of packets that were sent again. busy: share of the
    looks in which bytes waited.
    """

    bytes_per_s: float
    lost: float
    busy: float
    rtt_s: float


@dataclass(frozen=True)
class Pace:
    """A stretch of a run. step_s: the median's; None: too few steps are known. long_s: of one that
    is longer than nine of ten. links: by host, and the other. machines: of hosts that tell, as they
    were at its start.
    """

    step_s: float | None
    long_s: float
    ranks: Mapping[int, RankPace]
    links: Mapping[tuple[int, int], LinkPace]
    machines: Mapping[int, Machine]

    def cores(self, rank: int) -> float:
        """That a rank used; 0: not known."""
        return self.ranks[rank].cpu_s / self.step_s if self.step_s else 0.0


@dataclass(frozen=True)
class Doubt:
    """Something that may slow a run down, and is told once it has lasted. last_s: seen last."""

    cause: Cause
    since_s: float
    last_s: float


class RunHistory:
    """All hosts of a run. here: the node that listens, which hears itself without a network."""

    def __init__(self, places: Sequence[Place], here: int) -> None:
        self.hosts = [HostHistory(place) for place in places]
        self.here = here
        self.ranks = {rank: RankHistory() for place in places for rank in place.ranks}
        self.now_s = 0.0
        # Since when this host itself has looked without a break: it may have slept.
        self._awake_s = 0.0
        # How it gets on when it gets on well (diagnosis/pace.py).
        self.usual: Pace | None = None
        # Since when it has been slower than that, without a break; None: it is not.
        self.slow_since_s: float | None = None
        # What may slow it down (diagnosis/slow.py).
        self.doubt: Doubt | None = None
        # Who sets the pace, and since when (diagnosis/gate.py).
        self.gate: tuple[object, float] | None = None

    def take(self, node: int, vitals: Vitals, now_s: float) -> None:
        """A host's newest look came."""
        host = self.hosts[node]
        self.tick(now_s)
        if host.last is not None and vitals.number <= host.last.number:
            # One that was on its way while a newer came, or says again what it said.
            return
        vitals = self._of_run(node, vitals)
        host.looks.append((now_s, vitals))
        for rank in vitals.ranks:
            known = self.ranks[rank.rank]
            known.take(rank, now_s)
            known.memory.take(Sample(now_s, known.steps, rank.memory_bytes))
        for ended in vitals.ended:
            if ended.learning is not None:
                self.ranks[ended.rank].learning = ended.learning

    def _of_run(self, node: int, vitals: Vitals) -> Vitals:
        """Vitals of the host's own ranks, and of its links to other hosts of the run, alone."""
        own, others = self.hosts[node].place.ranks, set(range(len(self.hosts))) - {node}
        return replace(
            vitals,
            ranks=tuple(each for each in vitals.ranks if each.rank in own),
            ended=tuple(each for each in vitals.ended if each.rank in own),
            links=tuple(each for each in vitals.links if each.node in others),
            control=tuple(each for each in vitals.control if each.node in others),
        )

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        if now_s - self.now_s > _BREAK_S:
            self._awake_s = now_s
        self.now_s = max(self.now_s, now_s)

    @property
    def learning(self) -> dict[int, Learning]:
        """How the ranks learn that have told it."""
        known = ((rank, each.learning) for rank, each in self.ranks.items())
        return {rank: learning for rank, learning in known if learning is not None}

    def stands_s(self, rank: int) -> float:
        """For how long a rank has not been seen to get on."""
        return max(0.0, self.now_s - self.ranks[rank].moved_s)

    def node_of(self, rank: int) -> int:
        """The host of a rank."""
        return next(n for n, host in enumerate(self.hosts) if rank in host.place.ranks)

    def silent_s(self, node: int) -> float:
        """Since a host was heard of, by one that has been awake for so long."""
        heard_s = self.hosts[node].heard_s
        return 0.0 if heard_s is None else self.now_s - max(heard_s, self._awake_s)

    def alive(self) -> Iterator[tuple[int, RankVitals]]:
        """The ranks that run, by the newest look of their hosts, with their hosts."""
        for node, host in enumerate(self.hosts):
            for rank in () if host.last is None else host.last.ranks:
                yield node, rank

    @property
    def step_s(self) -> float | None:
        """Seconds of a usual step of this run."""
        known = [found for rank in self.ranks.values() if (found := rank.step_s) is not None]
        return max(known) if known else None

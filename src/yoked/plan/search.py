"""Look at every way to train on a fleet, and choose one.

Chosen is the fastest; of those within 3% of it the one that loses least on the way, so exact
where it can be. A host is left out where the others are faster without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from yoked.errors import UsageError, YokedError
from yoked.plan.candidates import EXACT, Candidate, build_candidate
from yoked.plan.costs import RankCost, rank_costs
from yoked.plan.fleet import network_of
from yoked.plan.memory import USABLE_PART
from yoked.plan.shape import Shape
from yoked.records.measurement import Measurement
from yoked.timeline.work import DENSE_BYTES, Network

# From what loses nothing on the way to what loses most.
SYNCS = tuple(DENSE_BYTES)
# Shown, and never chosen: what it does to the loss must be looked at.
FOR_THOSE_WHO_ASK = ("int4",)
WORTHWHILE = 1.03
# A host must give more than this to be worth its electricity and its chance to fail.
WORTH_A_HOST = 1.01


@dataclass(frozen=True)
class Question:
    """What is to be trained. device_batch_size: None looks for the best up to what was measured;
    dtype: None compares those that every host was measured in.
    """

    shape: Shape
    tokens_per_step: int
    device_batch_size: int | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class HostGain:
    """What one host gives to the others that take part: tokens/s with it, and without."""

    host: str
    with_it: float
    without_it: float

    @property
    def gain(self) -> float:
        """0.2: a fifth more tokens/s with it; below 0 it slows the others down."""
        return self.with_it / self.without_it - 1


@dataclass(frozen=True)
class Plan:
    """The answer. candidates: all hosts together, the fastest of each sync and dtype, fastest
    first; chosen: one of them, or of fewer hosts; alone: each host by itself; at_home: hosts
    that chosen leaves out; short: those of them whose memory would not do, with the bytes that
    they would need; costs: of chosen's dtype, by host.
    """

    question: Question
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    alone: dict[str, Candidate]
    gains: tuple[HostGain, ...]
    at_home: tuple[str, ...]
    costs: dict[str, RankCost]
    memory_bytes: dict[str, int] = field(default_factory=dict)
    short: dict[str, float] = field(default_factory=dict)

    @property
    def best_alone(self) -> Candidate:
        """The fastest host by itself, of those that the model fits."""
        return _fastest_alone(self.alone.values(), self.memory_bytes)

    @property
    def speedup(self) -> float:
        """Of the chosen over the fastest host alone."""
        return self.chosen.tokens_per_second / self.best_alone.tokens_per_second

    @property
    def efficiency(self) -> float:
        """Of the chosen over the sum of its hosts, each alone."""
        parts = [self.alone[host].tokens_per_second for host in self.chosen.hosts]
        return self.chosen.tokens_per_second / sum(parts)

    @property
    def too_small(self) -> dict[str, float]:
        """Hosts whose memory the chosen plan does not fit, with the bytes that it needs."""
        return _too_small(self.chosen, self.memory_bytes)


def make_plan(question: Question, measurement: Measurement) -> Plan:
    """Predict every candidate and choose. Raises UsageError for what was not measured."""
    search = _Search(question, measurement)
    everyone = tuple(measurement.ranks)
    together = search.candidates(everyone)
    best = search.choose(together)
    alone = {host: search.choose(search.candidates((host,))) for host in everyone}
    fitting, short = search.without_the_small(best)
    chosen = search.fewer_hosts(fitting, alone.values())
    return Plan(
        question=question,
        candidates=tuple(sorted(together, key=lambda c: -c.tokens_per_second)),
        chosen=chosen,
        alone=alone,
        gains=tuple(search.gains(chosen, everyone, short)),
        at_home=tuple(host for host in everyone if host not in chosen.rows),
        costs={host: search.costs[chosen.dtype][host] for host in chosen.hosts},
        memory_bytes=measurement.memory_bytes,
        short={host: need for host, need in short.items() if host not in chosen.rows},
    )


class _Search:
    """One question about one fleet; what was predicted is kept."""

    def __init__(self, question: Question, measurement: Measurement) -> None:
        self.question, self.measurement = question, measurement
        by_dtype = rank_costs(measurement, question.shape)
        self.costs = {
            dtype: {cost.host: cost for cost in costs}
            for dtype, costs in by_dtype.items()
            if question.dtype in (None, dtype)
        }
        if not self.costs:
            raise UsageError(
                f"--dtype {question.dtype} was not measured on this fleet",
                fix=f"--dtype {' or '.join(by_dtype)}",
            )
        self._networks: dict[tuple[str, ...], Network] = {}
        self.rows = question.tokens_per_step // question.shape.sequence_len

    def candidates(self, hosts: Collection[str]) -> list[Candidate]:
        """The fastest of each sync and dtype that these hosts can train with."""
        found = []
        for known in self.costs.values():
            if any(host not in known for host in hosts):
                continue
            costs = [known[host] for host in hosts]
            for sync in _syncs(costs):
                sizes = self._device_batches(costs)
                tried = [self._candidate(costs, sync, size) for size in sizes]
                fitting = [each for each in tried if not self._too_small(each)] or tried[:1]
                found.append(max(fitting, key=lambda each: each.tokens_per_second))
        if not found:
            raise YokedError(
                f"no dtype was measured on all of {', '.join(hosts)}",
                fix=["yoked probe", "or leave --dtype out"],
            )
        return found

    def _device_batches(self, costs: Sequence[RankCost]) -> list[int]:
        """Powers of two up to the micro-batch that was measured, and that itself."""
        if self.question.device_batch_size is not None:
            return [self.question.device_batch_size]
        most = min(cost.measured_rows for cost in costs)
        return sorted(
            {1 << power for power in range(most.bit_length()) if 1 << power < most} | {most}
        )

    def _candidate(self, costs: Sequence[RankCost], sync: str, device_batch: int) -> Candidate:
        return build_candidate(
            self.question.shape,
            costs,
            self._network(tuple(cost.host for cost in costs)),
            sync=sync,
            rows_per_step=self.rows,
            device_batch_size=device_batch,
        )

    def _network(self, hosts: tuple[str, ...]) -> Network:
        if hosts not in self._networks:
            self._networks[hosts] = network_of(self.measurement, hosts)
        return self._networks[hosts]

    def _again(self, like: Candidate, hosts: Collection[str]) -> Candidate:
        """The same way to train with other hosts."""
        costs = [self.costs[like.dtype][host] for host in hosts]
        sync = like.sync if like.sync in _syncs(costs) else EXACT
        return self._candidate(costs, sync, like.device_batch_size)

    def _too_small(self, candidate: Candidate) -> dict[str, float]:
        return _too_small(candidate, self.measurement.memory_bytes)

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """The fastest that fits; of those near it the one that loses least."""
        safe = [each for each in candidates if each.sync not in FOR_THOSE_WHO_ASK]
        able = [each for each in safe if not self._too_small(each)] or safe
        fastest = max(each.tokens_per_second for each in able)
        near = [each for each in able if each.tokens_per_second * WORTHWHILE >= fastest]
        return min(near, key=lambda each: (SYNCS.index(each.sync), -each.tokens_per_second))

    def without_the_small(self, best: Candidate) -> tuple[Candidate, dict[str, float]]:
        """Leave out hosts whose memory will not do, with the bytes that they need, while the model
        fits others: with fewer hosts each may need more.
        """
        short: dict[str, float] = {}
        while small := self._too_small(best):
            others = tuple(host for host in best.hosts if host not in small)
            if not others:
                break
            short |= small
            best = self.choose(self.candidates(others))
        return best, short

    def fewer_hosts(self, best: Candidate, alone: Iterable[Candidate]) -> Candidate:
        """Leave hosts out, step by step, while that is faster or costs nothing."""
        while len(best.rows) > 1:
            fewer = max(
                (self._again(best, hosts) for hosts in self._some_left_out(best)),
                key=lambda each: each.tokens_per_second,
            )
            if fewer.tokens_per_second * WORTH_A_HOST < best.tokens_per_second:
                break
            best = self.choose(self.candidates(fewer.hosts))
        # Leaving one out may be no gain where leaving out all but one is.
        fastest = _fastest_alone(alone, self.measurement.memory_bytes)
        if self._too_small(best) and not self._too_small(fastest):
            return fastest
        worth = best.tokens_per_second >= fastest.tokens_per_second * WORTH_A_HOST
        return best if worth else fastest

    def _some_left_out(self, best: Candidate) -> Iterator[tuple[str, ...]]:
        """Hosts that are left without one, half or all of those that are alike."""
        for alike in self._kinds(best.hosts):
            for count in {1, len(alike) // 2, len(alike)} - {0}:
                left = tuple(host for host in best.hosts if host not in alike[-count:])
                if left:
                    yield left

    def gains(
        self, chosen: Candidate, everyone: Sequence[str], short: Collection[str]
    ) -> list[HostGain]:
        """What each host gives to the chosen ones; of those that are too small nothing is said.

        Hosts that are alike are looked at once.
        """
        found: dict[str, HostGain] = {}
        rate = chosen.tokens_per_second
        for alike in self._kinds(chosen.hosts) if len(chosen.rows) > 1 else ():
            others = tuple(host for host in chosen.hosts if host != alike[-1])
            without = self._rate(others)
            found |= {host: HostGain(host, rate, without) for host in alike}
        left_out = [host for host in everyone if host not in (*chosen.rows, *short)]
        for alike in self._kinds(left_out):
            more = self._rate((*chosen.hosts, alike[0]))
            found |= {host: HostGain(host, more, rate) for host in alike}
        return [found[host] for host in everyone if host in found]

    def _rate(self, hosts: tuple[str, ...]) -> float:
        return self.choose(self.candidates(hosts)).tokens_per_second

    def _kinds(self, hosts: Sequence[str]) -> list[list[str]]:
        """Hosts by what they compute and send to all others: those that are alike together."""
        network = self._network(tuple(self.measurement.ranks))
        kinds: dict[object, list[str]] = {}
        for host in hosts:
            costs = [known.get(host) for known in self.costs.values()]
            same = tuple(replace(cost, host="") for cost in costs if cost is not None)
            kinds.setdefault((same, network.ports.get(host)), []).append(host)
        return list(kinds.values())


def _syncs(costs: Sequence[RankCost]) -> tuple[str, ...]:
    """A rank alone has nothing to sync; NCCL, between GPUs alone, carries float32."""
    alone = sum(cost.ranks for cost in costs) == 1
    return SYNCS[:1] if alone or all(cost.device == "cuda" for cost in costs) else SYNCS


def _fastest_alone(alone: Iterable[Candidate], memory_bytes: dict[str, int]) -> Candidate:
    """The fastest that fits; where none does, of all."""
    return max(alone, key=lambda each: (not _too_small(each, memory_bytes), each.tokens_per_second))


def _too_small(candidate: Candidate, memory_bytes: dict[str, int]) -> dict[str, float]:
    return {
        host: need
        for host, need in candidate.memory_bytes.items()
        if host in memory_bytes and need > USABLE_PART * memory_bytes[host]
    }

"""Predict every way to train on a fleet, and choose one.

The fastest one is chosen; among those within 3% of it, the one with the least lossy gradients. A
host is excluded if the others are faster without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from yoked.core.faults import fault
from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.dtypes import BY_HOST, compute_dtypes, dtype_name, speed_of_all
from yoked.costmodel.memory import USABLE_FRACTION
from yoked.costmodel.model_shape import ModelShape, count_parameters
from yoked.costmodel.step_plan import (
    EXACT,
    MIN_SPEEDUP,
    SYNCS,
    best_rows,
    faster_head,
    nccl_suits,
    plan_memory,
    predict_heads,
    safe_syncs,
)
from yoked.costmodel.work import DENSE_BYTES, Network, StepForecast, less_delayed
from yoked.errors import UsageError
from yoked.plan.costs import rank_costs
from yoked.plan.network import network_of
from yoked.records.measurement import Measurement
from yoked.units import doublings

# A host that gains less is not worth its electricity and its chance to fail.
MIN_HOST_GAIN = 1.01


@dataclass(frozen=True)
class PlanRequest:
    """The training to plan.

    device_batch_size: None searches up to the measured one. dtype: None compares all in which every
    host was measured, and each host's own where they differ. tables_on_host: those of GPUs' ranks.
    memory_notes: what is to be said of a GPU's memory.
    """

    shape: ModelShape
    tokens_per_step: int
    device_batch_size: int | None = None
    dtype: str | None = None
    tables_on_host: bool = False
    memory_notes: tuple[str, ...] = ()

    @property
    def safe_syncs(self) -> tuple[str, ...]:
        """As `safe_syncs` of this model and step."""
        return safe_syncs(self.shape, self.tokens_per_step)


@dataclass(frozen=True)
class Candidate:
    """One way to train, and its predicted step.

    lm_head: a value of `--lm-head`. accumulation: micro-batches of the rank with most of them.
    rows: of a step, by host. memory_bytes: that it needs, by host, all its ranks; over_memory: of
    those hosts that have less. gradient_s: that the whole float32 gradient would take through the
    slowest port; None on one host.
    """

    sync: str
    lm_head: str
    dtype: str
    device_batch_size: int
    accumulation: int
    rows: dict[str, int]
    ranks: dict[str, int]
    tokens_per_step: int
    forecast: StepForecast
    memory_bytes: dict[str, float]
    over_memory: dict[str, float]
    gradient_s: float | None

    @property
    def rho(self) -> float | None:
        """The time of the whole float32 gradient, over that of a host's computation in a step."""
        return None if self.gradient_s is None else self.gradient_s / self.forecast.compute_s

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole fleet."""
        return self.tokens_per_step / self.forecast.step_s

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that take part."""
        return tuple(self.rows)


@dataclass(frozen=True)
class HostGain:
    """The value of one host: tokens/s of the fleet with it, and without it."""

    host: str
    with_host: float
    without_host: float

    @property
    def gain(self) -> float:
        """0.2: a fifth more tokens/s with it. Below 0 it slows the others down."""
        return self.with_host / self.without_host - 1


@dataclass(frozen=True)
class Plan:
    """The candidates, and the chosen one.

    candidates: with all hosts, the fastest of each sync and dtype, fastest first.
    chosen: one of these, or a candidate with fewer hosts. single_host: each host by itself.
    excluded: hosts that chosen does not use. insufficient_memory: those of them that have too
    little memory, with the bytes that they need. costs: in chosen's dtype, by host.
    """

    request: PlanRequest
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    single_host: dict[str, Candidate]
    host_gains: tuple[HostGain, ...]
    excluded: tuple[str, ...]
    costs: dict[str, RankCost]
    memory_bytes: dict[str, int]
    insufficient_memory: dict[str, float]

    @property
    def best_single_host(self) -> Candidate:
        """The fastest host by itself, among those that have the memory."""
        return _fastest_single_host(self.single_host.values())

    @property
    def speedup(self) -> float:
        """The chosen candidate over the fastest host by itself."""
        return self.chosen.tokens_per_second / self.best_single_host.tokens_per_second

    @property
    def efficiency(self) -> float:
        """The chosen candidate over the sum of its hosts, each by itself."""
        rates = [self.single_host[host].tokens_per_second for host in self.chosen.hosts]
        return self.chosen.tokens_per_second / sum(rates)


def make_plan(request: PlanRequest, measurement: Measurement) -> Plan:
    """Predict every candidate and choose one. Raises UsageError for what was not measured."""
    search = _Search(request, measurement)
    all_hosts = tuple(measurement.ranks)
    together = search.candidates(all_hosts)
    best = search.choose(together)
    single_host = {host: search.best_with((host,)) for host in all_hosts}
    fitting, insufficient_memory = search.exclude_over_memory(best)
    chosen = search.prune_hosts(fitting, single_host.values())
    return Plan(
        request=request,
        candidates=tuple(sorted(together, key=lambda c: -c.tokens_per_second)),
        chosen=chosen,
        single_host=single_host,
        host_gains=tuple(search.host_gains(chosen, all_hosts, insufficient_memory)),
        excluded=tuple(host for host in all_hosts if host not in chosen.rows),
        costs={host: search.costs[chosen.dtype][host] for host in chosen.hosts},
        memory_bytes=measurement.memory_bytes,
        insufficient_memory={
            host: need for host, need in insufficient_memory.items() if host not in chosen.rows
        },
    )


def choose_for_all_hosts(
    request: PlanRequest, measurement: Measurement, sync: str | None = None
) -> Candidate:
    """The candidate for a run on all hosts. sync: the only one allowed. Raises as `make_plan`."""
    search = _Search(request, measurement)
    hosts = tuple(measurement.ranks)
    if sync is None:
        return search.best_with(hosts)
    return search.choose([each for each in search.each_sync(hosts) if each.sync == sync])


def least_lossy(candidates: Sequence[Candidate]) -> Candidate:
    """Of those within MIN_SPEEDUP of the fastest, what loses least; of equals the fastest."""
    fastest = max(each.tokens_per_second for each in candidates)
    near = [each for each in candidates if each.tokens_per_second * MIN_SPEEDUP >= fastest]
    return min(near, key=lambda each: (SYNCS.index(each.sync), -each.tokens_per_second))


class _Search:
    """The search for one request on one fleet. It caches the networks between hosts."""

    def __init__(self, request: PlanRequest, measurement: Measurement) -> None:
        self.request, self.measurement = request, measurement
        by_dtype = rank_costs(measurement, request.shape)
        self.costs = {
            dtype: {cost.host: cost for cost in costs}
            for dtype, costs in by_dtype.items()
            if request.dtype in (None, dtype)
        }
        if not self.costs:
            raise UsageError(
                f"--dtype {request.dtype} was not measured on this fleet",
                fix=f"--dtype {' or '.join(by_dtype)}",
            )
        self._networks: dict[tuple[str, ...], Network] = {}
        if request.dtype is None:
            self.costs[BY_HOST] = self._costs_by_host()
        self.rows = request.tokens_per_step // request.shape.sequence_len

    def _costs_by_host(self) -> dict[str, RankCost]:
        """By host, in the dtype in which `yoked train` would compute there."""
        hosts = list(self.measurement.ranks)
        times_s = [
            {
                dtype: known[host].row_s / known[host].ranks
                for dtype, known in self.costs.items()
                if host in known
            }
            for host in hosts
        ]
        common = max(self.costs, key=lambda dtype: speed_of_all(times_s, [dtype] * len(times_s)))
        dtypes = compute_dtypes(times_s, common)
        return {host: self.costs[dtype][host] for host, dtype in zip(hosts, dtypes, strict=True)}

    def candidates(self, hosts: Collection[str]) -> list[Candidate]:
        """`each_sync` without delays that gain less than MIN_SPEEDUP."""
        found = self.each_sync(hosts)
        rates = {(each.dtype, each.sync): each.tokens_per_second for each in found}
        return [
            each
            for each in found
            if all(
                each.tokens_per_second > MIN_SPEEDUP * rates[each.dtype, sync]
                for sync in less_delayed(each.sync)
            )
        ]

    def each_sync(self, hosts: Collection[str]) -> list[Candidate]:
        """The fastest candidate of each sync and dtype with these hosts."""
        found = []
        for name, known in self.costs.items():
            if any(host not in known for host in hosts):
                continue
            costs = [known[host] for host in hosts]
            if name != dtype_name([cost.dtype for cost in costs]):
                continue
            for sync in self._available_syncs(costs):
                sizes = doublings(min(cost.measured_rows for cost in costs))
                if self.request.device_batch_size is not None:
                    sizes = [self.request.device_batch_size]
                tried = [self._candidate(costs, sync, size) for size in sizes]
                # If no size fits, the smallest comes nearest.
                fitting = [each for each in tried if not each.over_memory] or tried[:1]
                found.append(max(fitting, key=lambda each: each.tokens_per_second))
        if not found:
            raise fault("dtype-unmeasured", names=", ".join(hosts))
        return found

    def _candidate(self, costs: Sequence[RankCost], sync: str, device_batch_size: int) -> Candidate:
        """Assign rows by speed and simulate the step. costs: one for each host, of one dtype."""
        shape, memory_bytes = self.request.shape, self.measurement.memory_bytes
        ranks = [cost for cost in costs for _ in range(cost.ranks)]
        # Ranks of a host share its memory. Memory that is not known is taken for enough.
        usable_bytes = [
            USABLE_FRACTION * memory_bytes.get(cost.host, math.inf) / cost.ranks for cost in ranks
        ]
        network = self._network(tuple(cost.host for cost in costs))
        found = predict_heads(
            shape,
            ranks,
            network,
            sync=sync,
            rows=best_rows(self.rows, ranks, device_batch_size),
            device_batch_size=device_batch_size,
        )
        plan, forecast = found[faster_head(found, shape, usable_bytes)]
        on_host = [
            rank
            for rank, cost in enumerate(ranks)
            if self.request.tables_on_host and cost.device == "cuda"
        ]
        by_rank = plan_memory(plan, shape, on_host)
        rate = network.slowest_port_bytes_per_s
        gradient_s = (
            None if rate is None else DENSE_BYTES[EXACT] * count_parameters(shape).total / rate
        )
        rows = dict.fromkeys((cost.host for cost in costs), 0)
        needs = dict.fromkeys(rows, 0.0)
        for cost, count, need in zip(ranks, plan.rows, by_rank, strict=True):
            rows[cost.host] += count
            needs[cost.host] += need
        return Candidate(
            sync=sync,
            lm_head=plan.lm_head,
            dtype=dtype_name(plan.dtypes),
            device_batch_size=device_batch_size,
            accumulation=plan.accumulation,
            rows=rows,
            ranks={cost.host: cost.ranks for cost in costs},
            tokens_per_step=self.rows * shape.sequence_len,
            forecast=forecast,
            memory_bytes=needs,
            over_memory={
                host: need
                for host, need in needs.items()
                if need > USABLE_FRACTION * memory_bytes.get(host, math.inf)
            },
            gradient_s=gradient_s,
        )

    def _network(self, hosts: tuple[str, ...]) -> Network:
        if hosts not in self._networks:
            self._networks[hosts] = network_of(self.measurement, hosts)
        return self._networks[hosts]

    def _available_syncs(self, costs: Sequence[RankCost]) -> tuple[str, ...]:
        """A single rank has nothing to sync, and NCCL sends float32."""
        if sum(cost.ranks for cost in costs) == 1:
            return SYNCS[:1]
        if any(cost.device != "cuda" for cost in costs):
            return SYNCS
        rate = self._network(tuple(cost.host for cost in costs)).slowest_port_bytes_per_s
        return SYNCS[:1] if nccl_suits(rate) else SYNCS

    def _with_hosts(self, like: Candidate, hosts: Collection[str]) -> Candidate:
        """The same candidate with other hosts."""
        costs = [self.costs[like.dtype][host] for host in hosts]
        sync = like.sync if like.sync in self._available_syncs(costs) else EXACT
        return self._candidate(costs, sync, like.device_batch_size)

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """The fastest that fits; of those near it the least lossy. Opted in: where all are."""
        safe = [each for each in candidates if each.sync in self.request.safe_syncs]
        safe = safe or list(candidates)
        # If nothing fits, one is chosen all the same: the plan says what it would need.
        able = [each for each in safe if not each.over_memory] or safe
        return least_lossy(able)

    def best_with(self, hosts: Collection[str]) -> Candidate:
        """What is chosen if these hosts take part."""
        return self.choose(self.candidates(hosts))

    def exclude_over_memory(self, best: Candidate) -> tuple[Candidate, dict[str, float]]:
        """Exclude hosts with too little memory, and return them with the bytes that they need.

        Repeated, because with fewer hosts each may need more; if no host would be left, all stay.
        """
        insufficient_memory: dict[str, float] = {}
        while small := best.over_memory:
            others = tuple(host for host in best.hosts if host not in small)
            if not others:
                break
            insufficient_memory |= small
            best = self.best_with(others)
        return best, insufficient_memory

    def prune_hosts(self, best: Candidate, single_host: Iterable[Candidate]) -> Candidate:
        """Exclude hosts, one group at a time, while that is faster or costs nothing."""
        while len(best.rows) > 1:
            # One candidate stands for each set of hosts; only the best set is searched in full.
            fewer = max(
                (self._with_hosts(best, hosts) for hosts in self._smaller_host_sets(best)),
                key=lambda each: each.tokens_per_second,
            )
            if fewer.tokens_per_second * MIN_HOST_GAIN < best.tokens_per_second:
                break
            best = self.best_with(fewer.hosts)
        # Excluding one host may gain nothing although a single host is fastest.
        fastest = _fastest_single_host(single_host)
        if best.over_memory and not fastest.over_memory:
            return fastest
        worth = best.tokens_per_second >= fastest.tokens_per_second * MIN_HOST_GAIN
        return best if worth else fastest

    def _smaller_host_sets(self, best: Candidate) -> Iterator[tuple[str, ...]]:
        """The remaining hosts without one, half or all of each group of identical hosts."""
        for group in self._group_identical(best.hosts):
            for count in {1, len(group) // 2, len(group)} - {0}:
                rest = tuple(host for host in best.hosts if host not in group[-count:])
                if rest:
                    yield rest

    def host_gains(
        self, chosen: Candidate, all_hosts: Sequence[str], insufficient_memory: Collection[str]
    ) -> list[HostGain]:
        """The gain of each host; those with too little memory are left out.

        Identical hosts are predicted once.
        """
        found: dict[str, HostGain] = {}
        rate = chosen.tokens_per_second
        for group in self._group_identical(chosen.hosts) if len(chosen.rows) > 1 else ():
            others = tuple(host for host in chosen.hosts if host != group[-1])
            without = self.best_with(others).tokens_per_second
            found |= {host: HostGain(host, rate, without) for host in group}
        left_out = [host for host in all_hosts if host not in (*chosen.rows, *insufficient_memory)]
        for group in self._group_identical(left_out):
            more = self.best_with((*chosen.hosts, group[0])).tokens_per_second
            found |= {host: HostGain(host, more, rate) for host in group}
        return [found[host] for host in all_hosts if host in found]

    def _group_identical(self, hosts: Sequence[str]) -> list[list[str]]:
        """Group hosts that compute and send at the same rates."""
        # Of the whole fleet: the rate of a port depends on which other hosts there are.
        network = self._network(tuple(self.measurement.ranks))
        groups: dict[object, list[str]] = {}
        for host in hosts:
            costs = [known.get(host) for known in self.costs.values()]
            same = tuple(replace(cost, host="") for cost in costs if cost is not None)
            groups.setdefault((same, network.ports.get(host)), []).append(host)
        return list(groups.values())


def _fastest_single_host(single_host: Iterable[Candidate]) -> Candidate:
    """The fastest host that has the memory; if none has, the fastest of all."""
    return max(single_host, key=lambda each: (not each.over_memory, each.tokens_per_second))

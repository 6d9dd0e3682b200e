"""Combine links, the ranks' reports and collectives into one measurement. Pure functions."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yoked.costmodel.model_shape import check_shape
from yoked.fleet.model import usable_gpus
from yoked.probe.collectives import TimedCollective, with_bandwidth
from yoked.records.building import build
from yoked.records.measurement import Compute, Link, Measurement, StepCost


@dataclass(frozen=True)
class RankReport:
    """A rank's host, as named in yoked.toml, and its measured step; None: no step was measured."""

    host: str
    profile: Mapping[str, Any] | None


def summarise(
    *,
    fleet: str,
    taken_s: float,
    hosts: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
    links: Sequence[Link],
    ranks: Sequence[RankReport],
    timed: Iterable[Mapping[str, Any]],
) -> Measurement:
    """The measurement of a fleet.

    facts: by host, from its agent. timed: collectives, from the worker. ranks: in order of rank;
    may be empty.
    """
    counted = Counter(rank.host for rank in ranks)
    link_bytes_per_s = min((link.goodput_bytes_per_s for link in links), default=None)
    profiled = [(rank.host, rank.profile) for rank in ranks if rank.profile is not None]
    step_costs = _slowest_rank_costs(
        _step_cost(host, each)
        for host, report in profiled
        for each in report["step_costs"]
    )
    on_gpus = {cost.host for cost in step_costs if cost.device == "cuda"}
    memory = {
        host: _gpu_memory_bytes(each, counted[host]) if host in on_gpus else each["memory_bytes"]
        for host, each in facts.items()
    }
    return Measurement(
        fleet=fleet,
        taken_s=taken_s,
        ranks={host: counted[host] for host in hosts if host in counted},
        # Memory that is not known is left out: a plan takes it for enough.
        memory_bytes={host: amount for host, amount in memory.items() if amount},
        links=tuple(links),
        collectives=tuple(
            with_bandwidth(
                [TimedCollective(**each) for each in timed], len(ranks), link_bytes_per_s
            )
        ),
        compute=tuple(
            _sum_by_device(
                build(Compute, {**each, "host": host}, "compute")
                for host, report in profiled
                for each in report["compute"]
            )
        ),
        step_costs=tuple(step_costs),
    )


def _step_cost(host: str, told: Mapping[str, Any]) -> StepCost:
    """A step that a rank has measured. Raises TypeError or ValueError for what is none."""
    cost: StepCost = build(StepCost, {**told, "host": host}, "step_costs")
    check_shape(cost.model)
    return cost


def _gpu_memory_bytes(facts: Mapping[str, Any], ranks: int) -> int | None:
    """Memory of the GPUs of so many ranks, one each; None if a GPU does not report it."""
    amounts = [gpu["memory_bytes"] for gpu in usable_gpus(facts)[:ranks]]
    return sum(amounts) if len(amounts) == ranks and all(amounts) else None


def is_complete(measurement: Measurement) -> bool:
    """Whether a plan can be made: all links, and a step of every host, were measured."""
    hosts = set(measurement.ranks)
    links = {(link.from_host, link.to_host) for link in measurement.links}
    stepped = {cost.host for cost in measurement.step_costs}
    return bool(hosts) and stepped == hosts and len(links) == len(hosts) * (len(hosts) - 1)


def _sum_by_device(computes: Iterable[Compute]) -> list[Compute]:
    """Sum ranks that share a CPU: one Compute for each device and dtype."""
    found: dict[tuple[str, str, str], Compute] = {}
    for each in computes:
        key = each.host, each.device, each.dtype
        other = found.get(key)
        found[key] = each if other is None else _add(other, each)
    return list(found.values())


def _add(one: Compute, other: Compute) -> Compute:
    return dataclasses.replace(
        one,
        threads=one.threads + other.threads,
        flops_per_s=one.flops_per_s + other.flops_per_s,
        copy_bytes_per_s=one.copy_bytes_per_s + other.copy_bytes_per_s,
    )


def _slowest_rank_costs(costs: Iterable[StepCost]) -> list[StepCost]:
    """The cost of the slowest rank, for each host, kind of device and dtype."""
    found: dict[tuple[str, str, str], StepCost] = {}
    for each in costs:
        key = each.host, each.device, each.dtype
        other = found.get(key)
        # By token: a rank whose rows are slow has timed fewer of them.
        if other is None or other.batch_s / other.tokens < each.batch_s / each.tokens:
            found[key] = each
    return list(found.values())

"""Combine links, the ranks' reports and collectives into one measurement. Pure functions."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from yoked.core.schema import decode
from yoked.costmodel.model_shape import check_shape
from yoked.fleet.devices import usable_gpus
from yoked.probe.collectives import with_bandwidth
from yoked.records.measurement import Collective, Compute, Link, Measurement, StepCost

# Links and collectives are measured one after the other: 103% was seen on quiet hosts.
_MOST_OF_WIRE = 1.15
# Of less a shaped link lets through what its bucket holds.
_LARGE_BYTES = 1_000_000
_Told = TypeVar("_Told", Compute, StepCost)


def summarise(
    *,
    fleet: str,
    taken_s: float,
    hosts: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
    links: Sequence[Link],
    ranks: Sequence[tuple[str, Mapping[str, Any] | None]],
    timed: Iterable[Mapping[str, Any]],
    busy_cores: Mapping[str, float],
) -> Measurement:
    """The measurement of a fleet. Raises ValueError for what no rank measures.

    facts: by host, from its agent. ranks: in order of rank, the host as in yoked.toml and what the
    rank told, None without a step; may be empty. timed: collectives, from the worker. busy_cores:
    by host, of other programs.
    """
    counted = Counter(host for host, _ in ranks)
    link_bytes_per_s = min((link.goodput_bytes_per_s for link in links), default=None)
    profiled = [(host, profile) for host, profile in ranks if profile is not None]
    costs = [
        decode(StepCost, {**each, "host": host}, "step_costs")
        for host, profile in profiled
        for each in profile["step_costs"]
    ]
    # The slowest rank of each device, by token: one whose rows are slow has timed fewer of them.
    step_costs = tuple(
        max(ranks, key=lambda cost: cost.batch_s / cost.tokens) for ranks in _by_device(costs)
    )
    for cost in step_costs:
        check_shape(cost.model)
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
        collectives=tuple(with_bandwidth(timed, len(ranks), link_bytes_per_s)),
        compute=_sum_of_ranks(
            decode(Compute, {**each, "host": host}, "compute")
            for host, profile in profiled
            for each in profile["compute"]
        ),
        step_costs=step_costs,
        busy_cores=busy_cores,
    )


def _gpu_memory_bytes(facts: Mapping[str, Any], ranks: int) -> int | None:
    """Memory of the GPUs of so many ranks, one each; None if a GPU does not report it."""
    # Its ranks trained on GPUs: where none is NVIDIA's, their torch is built for AMD's.
    gpus = usable_gpus(facts, {}) or usable_gpus(facts, {"build": "rocm"})
    amounts = [gpu["memory_bytes"] for gpu in gpus[:ranks]]
    return sum(amounts) if len(amounts) == ranks and all(amounts) else None


def beyond_wire(measurement: Measurement) -> tuple[Link, Collective] | None:
    """The slowest link and the collective that carried more than that link, which no wire does.

    Then the link was measured while it, or a processor that fills it, was busy with other work.
    NCCL sends less between hosts of several GPUs than its bus bandwidth says, so it does not count.
    """
    found = [
        each
        for each in measurement.collectives
        if each.fraction_of_wire is not None
        and each.payload_bytes >= _LARGE_BYTES
        and (each.backend == "gloo" or each.ranks == len(measurement.ranks))
    ]
    most = max(found, key=lambda each: each.fraction_of_wire or 0.0, default=None)
    if most is None or (most.fraction_of_wire or 0.0) <= _MOST_OF_WIRE:
        return None
    return min(measurement.links, key=lambda link: link.goodput_bytes_per_s), most


def is_complete(measurement: Measurement) -> bool:
    """Whether a plan can be made: all links, and a step of every host, were measured."""
    hosts = set(measurement.ranks)
    links = {(link.from_host, link.to_host) for link in measurement.links}
    stepped = {cost.host for cost in measurement.step_costs}
    return bool(hosts) and stepped == hosts and len(links) == len(hosts) * (len(hosts) - 1)


def _by_device(told: Iterable[_Told]) -> list[list[_Told]]:
    """The ranks' records, grouped by host, device and dtype."""
    groups: dict[tuple[str, str, str], list[_Told]] = {}
    for each in told:
        groups.setdefault((each.host, each.device, each.dtype), []).append(each)
    return list(groups.values())


def _sum_of_ranks(computes: Iterable[Compute]) -> tuple[Compute, ...]:
    """Sum ranks that share a CPU: one Compute for each device and dtype."""
    return tuple(
        dataclasses.replace(
            ranks[0],
            threads=sum(each.threads for each in ranks),
            flops_per_s=sum(each.flops_per_s for each in ranks),
            copy_bytes_per_s=sum(each.copy_bytes_per_s for each in ranks),
        )
        for ranks in _by_device(computes)
    )

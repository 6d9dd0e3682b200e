"""The network between hosts, from a measurement: port rates and latency."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import permutations

from yoked.core.faults import fault
from yoked.costmodel.work import Network, PortRate
from yoked.records.measurement import Collective, Measurement

# Gloo's bus bandwidth over raw TCP's goodput, if no collective was measured: all_reduces of 8 MB
# and more reached 99% at 1 Gbit/s and 95% at 100 Mbit/s.
GLOO_LINK_FRACTION = 0.97
# Below the first size latency dominates, above the second one the rate.
SMALL_BYTES, LARGE_BYTES = 64_000, 1_000_000
# Software latency of a message, if no collective was measured: Gloo's threads wake up at both ends;
# for NCCL, one step of its ring. A small all-reduce among 8 hosts has some dozens of steps.
GLOO_LATENCY_S, NCCL_LATENCY_S = 0.5e-3, 20e-6


def network_of(measurement: Measurement, hosts: Collection[str]) -> Network:
    """The network between these hosts. A port has the rate of its slowest link to the others.

    Raises YokedError for a pair of hosts whose link was not measured.
    """
    hosts = set(hosts)
    links = [
        link for link in measurement.links if link.from_host in hosts and link.to_host in hosts
    ]
    known = {(link.from_host, link.to_host) for link in links}
    for a, b in permutations(sorted(hosts), 2):
        if (a, b) not in known:
            raise fault("link-unmeasured", source=a, target=b)
    if not links:
        return _single_host_network(measurement)
    fraction = link_fraction(measurement)
    egress, ingress = dict.fromkeys(hosts, math.inf), dict.fromkeys(hosts, math.inf)
    for link in links:
        # A rank sends and receives at the same time.
        rate = fraction * link.both_ways_bytes_per_s
        if not rate > 0:
            raise fault("link-idle", source=link.from_host, target=link.to_host)
        egress[link.from_host] = min(egress[link.from_host], rate)
        ingress[link.to_host] = min(ingress[link.to_host], rate)
    ports = {host: PortRate(egress[host], ingress[host]) for host in hosts}
    on_gpus = all(cost.device == "cuda" for cost in measurement.step_costs if cost.host in hosts)
    software_s = NCCL_LATENCY_S if on_gpus else GLOO_LATENCY_S
    # One latency for all pairs: the largest.
    rtt_s = max(link.rtt_s for link in links)
    jitter_s = max(link.jitter_s for link in links)
    return Network(ports, _latency_s(measurement, software_s + rtt_s / 2) + jitter_s / 2)


def _single_host_network(measurement: Measurement) -> Network:
    """The network between ranks of one host.

    Collectives tell its rate only if this host is the whole fleet: otherwise they used the links.
    """
    if measurement.links:
        return Network({}, GLOO_LATENCY_S)
    latency_s, rates = _latency_s(measurement, GLOO_LATENCY_S), _large_bus_bandwidths(measurement)
    return Network({}, latency_s, max(rates)) if rates else Network({}, latency_s)


def link_fraction(measurement: Measurement) -> float:
    """Bus bandwidth of large payloads, over the slowest link with both directions in use."""
    rates = _large_bus_bandwidths(measurement)
    slowest = min((link.both_ways_bytes_per_s for link in measurement.links), default=0.0)
    # A link that carries nothing tells nothing of Gloo; `network_of` names it where it is needed.
    if not rates or not slowest > 0:
        return GLOO_LINK_FRACTION
    # Both are measured apart, so an all-reduce may look faster: 103% of TCP in benchmarks/probe.
    return min(1.0, max(rates) / slowest)


def _large_bus_bandwidths(measurement: Measurement) -> list[float]:
    """Bus bandwidths, bytes/s, of all_reduces so large that latency hardly counts."""
    return [
        each.busbw_bytes_per_s
        for each in _all_reduces(measurement)
        if each.payload_bytes >= LARGE_BYTES
    ]


def _latency_s(measurement: Measurement, otherwise_s: float) -> float:
    """Latency of a message: a small all_reduce is 2(N-1) messages, one after the other.

    otherwise_s: the result if no small all_reduce was measured.
    """
    small = [
        each.time_s / (2 * (each.ranks - 1))
        for each in _all_reduces(measurement)
        if each.payload_bytes <= SMALL_BYTES and each.ranks > 1
    ]
    return min(small, default=otherwise_s)


def _all_reduces(measurement: Measurement) -> list[Collective]:
    """The measured all_reduces; in a fleet with links, only those that crossed them."""
    return [
        each
        for each in measurement.collectives
        if each.op == "all_reduce" and (each.fraction_of_wire is not None or not measurement.links)
    ]

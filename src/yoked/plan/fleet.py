"""The part of a measurement that decides a step: ports, latency, and who is there."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import permutations

from yoked.errors import YokedError
from yoked.records.measurement import Collective, Measurement
from yoked.timeline.work import Network, Port

# Of what raw TCP carries, where no collective was measured: Gloo's all_reduce of 8 MB and more
# reached 99% at 1 Gbit/s and 95% at 100 Mbit/s.
GLOO_PART_OF_WIRE = 0.97
# Below, latency is what counts; above, the rate.
SMALL_BYTES, LARGE_BYTES = 64_000, 1_000_000
# A round trip's worth of waking threads on both ends, where no collective was measured.
GLOO_LATENCY_S = 0.5e-3


def network_of(measurement: Measurement, hosts: Collection[str]) -> Network:
    """What these hosts can exchange, each over the slowest of its links to the others.

    Raises YokedError for a pair of hosts whose link was not measured.
    """
    hosts = set(hosts)
    links = [
        link for link in measurement.links if link.from_host in hosts and link.to_host in hosts
    ]
    known = {(link.from_host, link.to_host) for link in links}
    for a, b in permutations(sorted(hosts), 2):
        if (a, b) not in known:
            raise YokedError(
                f"the link from {a} to {b} was not measured", fix="yoked probe    says why"
            )
    if not links:
        return Network({}, _latency_s(measurement, 0.0))
    part = part_of_wire(measurement)
    leaving, coming = dict.fromkeys(hosts, math.inf), dict.fromkeys(hosts, math.inf)
    for link in links:
        rate = part * link.both_ways_bytes_per_s
        if not rate > 0:
            raise YokedError(
                f"the link from {link.from_host} to {link.to_host} carried nothing",
                fix="yoked probe",
            )
        leaving[link.from_host] = min(leaving[link.from_host], rate)
        coming[link.to_host] = min(coming[link.to_host], rate)
    ports = {host: Port(leaving[host], coming[host]) for host in hosts}
    return Network(ports, _latency_s(measurement, max(link.rtt_s for link in links)))


def part_of_wire(measurement: Measurement) -> float:
    """What collectives of large payloads reach of the slowest link, both ways in use."""
    rates = [
        each.busbw_bytes_per_s
        for each in _all_reduces(measurement)
        if each.payload_bytes >= LARGE_BYTES
    ]
    if not rates or not measurement.links:
        return GLOO_PART_OF_WIRE
    slowest = min(link.both_ways_bytes_per_s for link in measurement.links)
    return min(1.0, max(rates) / slowest)


def _latency_s(measurement: Measurement, rtt_s: float) -> float:
    """From ready to the first byte: an all_reduce of almost nothing is two such ways or more."""
    small = [
        each.time_s / 2 for each in _all_reduces(measurement) if each.payload_bytes <= SMALL_BYTES
    ]
    return min(small, default=GLOO_LATENCY_S + rtt_s / 2)


def _all_reduces(measurement: Measurement) -> list[Collective]:
    """Those that crossed the network, where there is one."""
    return [
        each
        for each in measurement.collectives
        if each.op == "all_reduce" and (each.fraction_of_wire is not None or not measurement.links)
    ]

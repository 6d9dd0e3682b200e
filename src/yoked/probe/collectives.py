"""Collectives as in nccl-tests: sizes, repetitions and bandwidths. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from yoked.core.schema import decode
from yoked.records.measurement import Collective

# From 1 kB to 256 MB, each four times the last one, except 1 MB.
PAYLOADS_BYTES = (
    *(1_000 * 4**power for power in range(5)),
    *(1_000_000 * 4**power for power in range(5)),
)
OPS = ("all_reduce", "all_gather", "reduce_scatter")
# Each operation's share of the time. Training waits for all_reduce, so that gets most.
TIME_WEIGHTS = {"all_reduce": 3.0, "all_gather": 1.0, "reduce_scatter": 1.0}
# A repetition takes at least so long: shorter operations are iterated.
REPETITION_S = 0.02
MAX_ITERATIONS = 20
MAX_REPETITIONS = 5
# An operation that takes longer needs no warm-up; a shorter one is never skipped.
LONG_S = 0.2
# Repetitions of one size take at most this fraction of the operation's time.
MAX_SIZE_FRACTION = 0.1


def bus_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: 2(N-1)/N for an all-reduce, (N-1)/N for the others.

    Source: nccl-tests, doc/PERFORMANCE.md. The payload of all_gather and reduce_scatter is that of
    all ranks together.
    """
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def element_count(payload_bytes: int, ranks: int) -> int:
    """Number of float32 elements of a payload, rounded to a multiple of the ranks."""
    return max(1, payload_bytes // (4 * ranks)) * ranks


def time_budget_s(op: str, left_s: float) -> float:
    """Time for an operation, out of the time left for it and all later ones."""
    waiting = OPS[OPS.index(op) :]
    return left_s * TIME_WEIGHTS[op] / sum(TIME_WEIGHTS[each] for each in waiting)


def is_skipped(expected_s: float, left_s: float) -> bool:
    """Whether a size would take too long. left_s: time left for its operation."""
    return expected_s > max(left_s, LONG_S)


def iterations(first_s: float) -> int:
    """Iterations in one repetition. first_s: time of the first run."""
    return max(1, min(MAX_ITERATIONS, round(REPETITION_S / max(first_s, 1e-9))))


def repetitions(first_s: float, limit_s: float, left_s: float) -> int:
    """Repetitions after the first run; none is needed if that one was long.

    limit_s: time for the operation at all sizes; left_s: what is left of it.
    """
    each_s = first_s * iterations(first_s)
    fitting = int(max(0.0, min(MAX_SIZE_FRACTION * limit_s, left_s)) / max(each_s, 1e-9))
    return max(0 if first_s >= LONG_S else 1, min(MAX_REPETITIONS, fitting))


def with_bandwidth(
    timed: Iterable[Mapping[str, Any]], ranks: int, link_bytes_per_s: float | None
) -> list[Collective]:
    """Add bandwidths to times. Raises ValueError for what is no Collective's.

    timed: op, backend, payload_bytes and time_s of the slowest rank. link_bytes_per_s: of the
    slowest link; None: there is no link.
    """
    found = []
    for each in timed:
        algbw = each["payload_bytes"] / each["time_s"]
        busbw = algbw * bus_factor(each["op"], ranks)
        record = {
            **each,
            "ranks": ranks,
            "algbw_bytes_per_s": algbw,
            "busbw_bytes_per_s": busbw,
            "fraction_of_wire": None if not link_bytes_per_s else busbw / link_bytes_per_s,
        }
        found.append(decode(Collective, record, "collectives"))
    return found

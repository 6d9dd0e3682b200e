"""Collectives as nccl-tests counts them: which sizes, how often, and what a time means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yoked.records.measurement import Collective

# From 1 kB to 256 MB, each four times the one before it but for the step to 1 MB.
PAYLOADS_BYTES = (
    *(1_000 * 4**power for power in range(5)),
    *(1_000_000 * 4**power for power in range(5)),
)
OPS = ("all_reduce", "all_gather", "reduce_scatter")
# How the time is shared out; all_reduce is what training waits for.
TIME_WEIGHTS = {"all_reduce": 3.0, "all_gather": 1.0, "reduce_scatter": 1.0}
# A repetition takes at least so long: what is shorter is done several times in a row.
REPETITION_S = 0.02
MAX_ITERATIONS = 20
MAX_REPETITIONS = 5
# From here on a first run is as good as any other; what is shorter is never left out.
LONG_S = 0.2
# What all repetitions of one size may take, as a part of the operation's time.
MAX_SIZE_FRACTION = 0.1


def bus_factor(op: str, ranks: int) -> float:
    """Which part of the payload the busiest wire carries: 2(N-1)/N of it for an all-reduce.

    Source: nccl-tests, doc/PERFORMANCE.md, by which the payload of all_gather and reduce_scatter
    is the whole, of which each rank has a part.
    """
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def element_count(payload_bytes: int, ranks: int) -> int:
    """float32 numbers of a payload, a multiple of the ranks."""
    return max(1, payload_bytes // (4 * ranks)) * ranks


def time_budget_s(op: str, left_s: float) -> float:
    """What an operation may take of the time that is left for it and those after it."""
    waiting = OPS[OPS.index(op) :]
    return left_s * TIME_WEIGHTS[op] / sum(TIME_WEIGHTS[each] for each in waiting)


def is_skipped(expected_s: float, left_s: float) -> bool:
    """Whether a size would take too long. left_s: what its operation may still take."""
    return expected_s > max(left_s, LONG_S)


def iterations(first_s: float) -> int:
    """How often an operation is done in one repetition. first_s: what it took at first."""
    return max(1, min(MAX_ITERATIONS, round(REPETITION_S / max(first_s, 1e-9))))


def repetitions(first_s: float, limit_s: float, left_s: float) -> int:
    """Repetitions after the first run, which counts itself where it is long.

    limit_s: what the operation may take at all its sizes; left_s: what is left of it.
    """
    each_s = first_s * iterations(first_s)
    fitting = int(max(0.0, min(MAX_SIZE_FRACTION * limit_s, left_s)) / max(each_s, 1e-9))
    return max(0 if first_s >= LONG_S else 1, min(MAX_REPETITIONS, fitting))


@dataclass(frozen=True)
class TimedCollective:
    """A collective at one size, by rank 0; the seconds are of the slowest rank."""

    op: str
    backend: str
    payload_bytes: int
    time_s: float


@dataclass(frozen=True)
class SkippedSize:
    """A size that would have taken too long. expected_s: by the size before it."""

    op: str
    payload_bytes: int
    expected_s: float


def with_bandwidth(
    timed: Sequence[TimedCollective], ranks: int, link_bytes_per_s: float | None
) -> list[Collective]:
    """Bandwidths of what was timed. link_bytes_per_s: of the slowest link; None: there is none."""
    found = []
    for each in timed:
        algbw = each.payload_bytes / each.time_s
        busbw = algbw * bus_factor(each.op, ranks)
        found.append(
            Collective(
                op=each.op,
                backend=each.backend,
                ranks=ranks,
                payload_bytes=each.payload_bytes,
                time_s=each.time_s,
                algbw_bytes_per_s=algbw,
                busbw_bytes_per_s=busbw,
                fraction_of_wire=None if not link_bytes_per_s else busbw / link_bytes_per_s,
            )
        )
    return found

"""Input and output of the step simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

# Bytes of a number on the wire, by `--sync`. Dense gradients and updates include the scales of
# their blocks.
# int8 has a float32 scale for 256 numbers, int4 a bf16 scale for 64 (`yoked.train.sync.codecs`).
INT8_BLOCK = 256
DENSE_BYTES = {"exact": 4.0, "bf16": 2.0, "int8": 1.0 + 4 / INT8_BLOCK, "int4": 0.5 + 2 / 64}

# These are a delay by a step, of the lm_head's gradient or of the matrices' too; what follows the
# colon is how gradients travel, exact without.
LATE_HEAD, LATE = "late-head", "late"


def rows_compression(compression: str, widths: Iterable[int]) -> str:
    """How rows of the embedding tables travel, beside other gradients. widths: of the tables.

    Each step has other rows, so error feedback cannot help them: 8 bits at least. And a scale is of
    one row alone: beside a frequent word's gradient a rare one's would be nothing.
    """
    if compression not in ("int8", "int4"):
        return compression
    return "bf16" if any(width % INT8_BLOCK for width in widths) else "int8"


class Delays(NamedTuple):
    """Which gradients a step takes from the step before."""

    head: bool
    matrices: bool


ON_TIME = Delays(head=False, matrices=False)


def delays_of(sync: str) -> Delays:
    """Which gradients are late with this `--sync`."""
    way = sync.partition(":")[0]
    return Delays(head=way in (LATE_HEAD, LATE), matrices=way == LATE)


def is_late(sync: str) -> bool:
    """Whether a step uses gradients of the step before."""
    return any(delays_of(sync))


def delayed(way: str, compression: str) -> str:
    """Gradients that travel so, with a delay. way: LATE_HEAD or LATE."""
    return way if compression == "exact" else f"{way}:{compression}"


def less_delayed(sync: str) -> list[str]:
    """Gradients that travel as these, with less of a delay or none."""
    compression = compression_of(sync)
    ways = [compression, delayed(LATE_HEAD, compression), delayed(LATE, compression)]
    return ways[: ways.index(sync)]


def compression_of(sync: str) -> str:
    """How gradients travel, of `DENSE_BYTES`."""
    return (sync.partition(":")[2] or "exact") if is_late(sync) else sync


# CPU time that a byte sent or received adds to a computation: Gloo, the kernel, cold caches and
# context switches. Measured by benchmarks/forecast/sending.py (torch 2.13, AMD Zen 5): 0.85 to 1.17
# ns in two runs. The larger one is used, so that forecasts promise too little rather than too
# much. Without a computation beside it a byte costs 0.5 to 0.7 ns.
GLOO_CPU_S_PER_BYTE = 1.15e-9


@dataclass(frozen=True)
class PortRate:
    """Rate of a host's network port, each way while the other way is in use too."""

    out_bytes_per_s: float
    in_bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """The links between ranks. ports: by host.

    latency_s: from the moment when a message is ready to its first byte at another rank.
    local_bytes_per_s: between ranks of one host.
    """

    ports: dict[str, PortRate]
    latency_s: float
    local_bytes_per_s: float = 5e9

    @property
    def slowest_port_bytes_per_s(self) -> float | None:
        """The lower rate of the slowest port; None on one host."""
        rates = [min(port.out_bytes_per_s, port.in_bytes_per_s) for port in self.ports.values()]
        return min(rates, default=None)


@dataclass(frozen=True)
class RankWork:
    """The work of one rank in one step.

    Micro-batches (`yoked.costmodel.schedule`) are early, deferred, or the last one:
    early_s: forward and backward pass of the early ones.
    deferred_forward_s: layers and lm_head of the deferred ones, forward.
    deferred_backward_s: their backward passes, in two parts, which run before the last one's; where
    none waits, their whole passes.
    forward_s, head_s, backward_s: the last one; 0 for a rank without rows.
    early_rows, deferred_rows, table_rows: rows of the embedding tables that they use.

    muon_s: Muon of the matrices that this rank owns, owned_fraction of all.
    adamw_s: AdamW of all other parameters.
    encode_s, decode_s: one number to its payload dtype and back.
    cpu_s_per_byte: CPU time of a byte sent or received, divided by the rank's threads.

    tokens: of this rank's rows. Where the lm_head is vocab-parallel, head_s is the time of this
    rank's part for the tokens of all ranks, and deferred_forward_s has no lm_head.
    """

    host: str
    early_s: float
    forward_s: float
    head_s: float
    backward_s: float
    muon_s: float
    adamw_s: float
    owned_fraction: float
    table_rows: float
    early_rows: float = 0.0
    deferred_forward_s: float = 0.0
    deferred_backward_s: tuple[float, float] = (0.0, 0.0)
    deferred_rows: tuple[float, float] = (0.0, 0.0)
    encode_s: float = 0.0
    decode_s: float = 0.0
    cpu_s_per_byte: float = 0.0
    tokens: float = 0.0

    @property
    def alone_s(self) -> float:
        """The step without communication."""
        last_s = self.forward_s + self.head_s + self.backward_s
        gradients_s = (
            self.early_s + self.deferred_forward_s + sum(self.deferred_backward_s) + last_s
        )
        return gradients_s + self.muon_s + self.adamw_s


@dataclass(frozen=True)
class StepTraffic:
    """The communication of one step.

    embedding_row_numbers: numbers of one row, over all embedding tables; table_rows: rows of each.
    layers: messages for the matrices' gradients; head_chunks: for the lm_head's gradient; buckets:
    for the new matrices.
    lm_head: replicated has its gradient all-reduced; vocab-parallel exchanges hidden states of
    token_bytes each.
    """

    head_numbers: float
    matrix_numbers: float
    embedding_row_numbers: float
    layers: int
    table_rows: float = math.inf
    dense_bytes: float = 4.0
    row_bytes: float = 4.0
    head_chunks: int = 1
    buckets: int = 4
    lm_head: str = "replicated"
    token_bytes: float = 0.0
    late: Delays = ON_TIME


@dataclass(frozen=True)
class HostStep:
    """One host's part of a step; compute_s + exposed_comm_s + wait_s is the step's time.

    exposed_comm_s: its slowest rank was idle while bytes were in flight. wait_s: it was idle while
    a slower rank computed. sent_bytes: through its port.
    """

    compute_s: float
    exposed_comm_s: float
    wait_s: float
    sent_bytes: float


@dataclass(frozen=True)
class StepForecast:
    """A step of the whole fleet. in_flight_s: time with at least one message in flight."""

    step_s: float
    in_flight_s: float
    hosts: dict[str, HostStep]

    @property
    def compute_s(self) -> float:
        """Computation of the host that computes longest."""
        return max(host.compute_s for host in self.hosts.values())

    @property
    def exposed_comm_s(self) -> float:
        """Exposed communication of the host that has most of it."""
        return max(host.exposed_comm_s for host in self.hosts.values())

    @property
    def hidden_comm_s(self) -> float:
        """The part of in_flight_s that overlapped with every host's computation."""
        return max(0.0, self.in_flight_s - self.exposed_comm_s)

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by the host that sends most."""
        return max(host.sent_bytes for host in self.hosts.values())

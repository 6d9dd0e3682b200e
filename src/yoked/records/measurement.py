"""What the probe saw of a fleet: its links, its collectives and its compute.

Seconds of a collective are those of its fastest undisturbed repetition; rates are bytes or FLOP a
second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from yoked.core.schema import Constraint
from yoked.costmodel.model_shape import ModelShape

# More than any host has: a plan goes through them one by one.
MOST_RANKS = 10_000
# A plan divides by these.
_Some = Annotated[int, Constraint("at least 1", lambda value: value >= 1)]
_Ranks = Annotated[_Some, Constraint(f"at most {MOST_RANKS}", lambda value: value <= MOST_RANKS)]
_Rate = Annotated[float, Constraint("above 0", lambda value: value > 0)]


@dataclass(frozen=True)
class Link:
    """Raw TCP from one host to another.

    goodput_bytes_per_s: payload while nothing else is sent; both_ways: while the other direction
    is in use too. jitter_s: by how much a round trip is longer than the shortest, on average.
    resent: the part of the packets that was sent again meanwhile; None where the kernel does not
    tell. A link at its limit loses some.
    """

    from_host: str
    to_host: str
    interface: str
    family: str  # ipv4 or ipv6; empty for a simulated link
    mtu_bytes: int  # of the path; 0: unknown
    rtt_s: float  # the shortest of several
    goodput_bytes_per_s: float
    both_ways_bytes_per_s: float
    jitter_s: float = 0.0
    resent: float | None = None


@dataclass(frozen=True)
class Collective:
    """One collective over all ranks of the fleet at one size.

    payload_bytes: of one rank's tensor. algbw: payload / time. busbw: algbw times the part of the
    payload that each rank's wire has to carry, 2(N-1)/N for all_reduce and (N-1)/N for the others,
    so that it compares with the wire whatever N is. Source: nccl-tests, doc/PERFORMANCE.md.
    fraction_of_wire: busbw over the slowest link's goodput; None where all ranks are on one host.
    """

    op: str
    backend: str
    ranks: int
    payload_bytes: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    fraction_of_wire: float | None


@dataclass(frozen=True)
class Compute:
    """One device of a host in one dtype, while all hosts compute.

    flops_per_s: of a large matrix product. copy_bytes_per_s: read plus written.
    """

    host: str
    device: str
    device_name: str
    dtype: str
    threads: _Some
    flops_per_s: _Rate
    copy_bytes_per_s: _Rate


@dataclass(frozen=True)
class StepCost:
    """What a training step of one model costs one rank, measured with the trainer's own code.

    forward_s, head_s, backward_s: one micro-batch of `tokens` tokens: the layers forward, the
    lm_head with the loss forward and backward, the layers backward. overhead_s: of a micro-batch
    whatever its size. adamw_s, muon_s: the whole optimizer step by this rank alone. All of the
    median step.
    """

    host: str
    device: str
    dtype: str
    threads: _Some
    model: ModelShape
    tokens: _Some
    forward_s: float
    head_s: float
    backward_s: float
    overhead_s: float
    adamw_s: float
    muon_s: float

    @property
    def batch_s(self) -> float:
        """The whole micro-batch."""
        return self.forward_s + self.head_s + self.backward_s


@dataclass(frozen=True)
class Measurement:
    """All of a fleet at one time. ranks: by host. taken_s: seconds since 1970.

    busy_cores: by host, what other programs used of its cores meanwhile, where that is notable.
    """

    fleet: str
    taken_s: float
    ranks: dict[str, _Ranks]
    memory_bytes: dict[str, int]  # by host; of its GPUs if it trains on them
    links: tuple[Link, ...]
    collectives: tuple[Collective, ...]
    compute: tuple[Compute, ...]
    step_costs: tuple[StepCost, ...]
    busy_cores: Mapping[str, float] = field(default_factory=dict)

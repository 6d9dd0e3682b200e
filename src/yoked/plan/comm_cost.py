"""Communication of a step of any model, from first principles: no fleet, no measurement, no torch.

Data parallelism, in which every rank has the whole model and one rank stands on each host, or FSDP,
in which each rank keeps a part of it. The bandwidth term alone: the 2(N-1) messages of a ring also
have their latency, which counts below some megabytes.

Sources: ring all-reduce, Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective
Communication Operations in MPICH"; FSDP's traffic, Rajbhandari et al. 2020, "ZeRO", section 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from yoked.costmodel.messages import ring_bytes
from yoked.costmodel.work import DENSE_BYTES
from yoked.plan.bandwidth_table import LINE_RATES_BIT_PER_S

Payload = Literal["fp32", "bf16", "fp16", "int8", "int4"]
# Bytes of a number on the wire; int8 and int4 with the scales of their blocks, as in `--sync`.
PAYLOAD_BYTES: dict[Payload, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "int8": DENSE_BYTES["int8"],
    "int4": DENSE_BYTES["int4"],
}
# Payload of a large all-reduce over the line's rate: Gloo's of 8 MB and more reached 0.95 of 1
# Gbit/s and 0.92 of 100 Mbit/s (benchmarks/probe); faster lines were not measured.
GLOO_LINE_FRACTION = 0.95
# What the lever "accumulation" aims at: this part of the time is spent computing.
GOOD_SCALING = 0.9
MOST_ACCUMULATION = 10**12


@dataclass(frozen=True)
class Training:
    """A model's data-parallel training. step_s: forward and backward pass of one rank, or None.

    params: numbers of the model. trainable: those whose gradients travel; None: all. accumulation:
    micro-batches, each of step_s, between two syncs. overlap: gradients travel during the last
    backward pass. efficiency: the part of the line's rate that a collective reaches.
    """

    params: float
    payload: Payload
    hosts: int
    efficiency: float
    step_s: float | None = None
    accumulation: int = 1
    overlap: bool = False
    trainable: float | None = None

    @property
    def trained(self) -> float:
        """Parameters that have a gradient."""
        return self.params if self.trainable is None else self.trainable

    @property
    def gradient_bytes(self) -> float:
        """One copy of all gradients."""
        return self.trained * PAYLOAD_BYTES[self.payload]

    @property
    def backward_fraction(self) -> float:
        """The part of step_s in which gradients exist, without recomputed activations.

        Forward, the gradient of the activations, and the gradient of the parameters take equal
        times for equal parameters, and frozen ones need no third: 2/3 where all are trained, 1/2
        where next to none is. The adapters' own extra work is not counted.
        """
        part = self.trained / self.params
        return (1 + part) / (2 + part)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends, and receives, in an all-reduce: 2(N-1)/N of the gradients."""
        return ring_bytes(self.gradient_bytes, self.hosts)


@dataclass(frozen=True)
class Cost:
    """The time of one update. exposed_s: of comm_s, what no computation hides.

    comm_to_compute: T_comm/T_compute. speedup: tokens per second, over one host that trains with
    the same micro-batches and sends nothing. All None where the compute time is not known.
    """

    sent_bytes: float
    comm_s: float
    compute_s: float | None = None
    exposed_s: float | None = None
    step_s: float | None = None
    comm_to_compute: float | None = None
    speedup: float | None = None


def transfer_s(sent_bytes: float, line_bit_per_s: float, efficiency: float) -> float:
    """Time of bytes that leave through one port, while as many come in."""
    return 8 * sent_bytes / (line_bit_per_s * efficiency)


def all_reduce_cost(training: Training, line_bit_per_s: float) -> Cost:
    """One update of DDP: `accumulation` micro-batches, then one all-reduce of the gradients."""
    hidden_s = 0.0
    if training.step_s is not None and training.overlap:
        hidden_s = training.backward_fraction * training.step_s
    return _cost(training, training.sent_bytes, line_bit_per_s, hidden_s)


def collectives_of_fsdp(training: Training) -> dict[str, float]:
    """Bytes that each rank sends in FSDP's collectives of a micro-batch: 3(N-1)/N in all.

    Parameters are gathered for the forward pass, and again for the backward pass, in the number
    format of the gradients; frozen ones too. Source: ZeRO, section 7.2.2.
    """
    weight_bytes = training.params * PAYLOAD_BYTES[training.payload]
    gathered = ring_bytes(weight_bytes, training.hosts) / 2
    return {
        "all-gather, forward": gathered,
        "all-gather, backward": gathered,
        "reduce-scatter": ring_bytes(training.gradient_bytes, training.hosts) / 2,
    }


def fsdp_cost(training: Training, line_bit_per_s: float) -> Cost:
    """One update of FSDP, whose collectives run for each micro-batch, all of them exposed."""
    sent = training.accumulation * sum(collectives_of_fsdp(training).values())
    return _cost(training, sent, line_bit_per_s, hidden_s=0.0)


def _cost(training: Training, sent_bytes: float, line_bit_per_s: float, hidden_s: float) -> Cost:
    comm_s = transfer_s(sent_bytes, line_bit_per_s, training.efficiency)
    if training.step_s is None:
        return Cost(sent_bytes, comm_s)
    compute_s = training.accumulation * training.step_s
    exposed_s = max(0.0, comm_s - hidden_s)
    return Cost(
        sent_bytes,
        comm_s,
        compute_s,
        exposed_s,
        compute_s + exposed_s,
        comm_s / compute_s,
        training.hosts * compute_s / (compute_s + exposed_s),
    )


def fleet_sizes(hosts: int) -> list[int]:
    """One host up to all: each number up to eight, then doubled."""
    counts = {*range(1, min(hosts, 8) + 1), hosts}
    doubled = 16
    while doubled < hosts:
        counts.add(doubled)
        doubled *= 2
    return sorted(counts)


def enough_accumulation(training: Training, line_bit_per_s: float) -> int:
    """Micro-batches between two syncs with which ranks compute GOOD_SCALING of the time.

    Assert: the training has a step_s.
    """
    assert training.step_s is not None, "accumulation needs the time of a micro-batch"
    once = all_reduce_cost(replace(training, accumulation=1, overlap=False), line_bit_per_s)
    times = once.comm_s / training.step_s * GOOD_SCALING / (1 - GOOD_SCALING)
    # Of a model and a step that nobody has it may be infinite.
    return max(1, math.ceil(min(times, MOST_ACCUMULATION)))


def levers(training: Training, line_bit_per_s: float) -> dict[str, Training]:
    """Ways to train the same model on the same line, by their names: the training as it is first.

    The last combines int8, overlap and accumulation.
    """
    found = {"as above": training}
    smaller: tuple[Payload, ...] = ("bf16", "int8", "int4")
    compressed = [
        payload for payload in smaller if PAYLOAD_BYTES[payload] < PAYLOAD_BYTES[training.payload]
    ]
    if training.step_s is not None:
        found["overlap"] = replace(training, overlap=True)
        enough = enough_accumulation(training, line_bit_per_s)
        found |= {
            f"accumulation {times}": replace(training, accumulation=times)
            for times in sorted({4, enough})
            if times > 1
        }
    found |= {payload: replace(training, payload=payload) for payload in compressed}
    if training.step_s is not None and "int8" in compressed:
        together = replace(training, payload="int8", overlap=True)
        most = enough_accumulation(together, line_bit_per_s)
        found[f"all, accumulation {most}"] = replace(together, accumulation=most)
    return found


def lines_with(link_bit_per_s: float) -> list[float]:
    """The lines of homes and of a cluster, and a given one, the slowest first."""
    return sorted({*LINE_RATES_BIT_PER_S, link_bit_per_s})

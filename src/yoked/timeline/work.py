"""What goes into a step's timeline, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of a number on the wire by `--sync`: of dense gradients and updates, with the scales of
# their blocks, and of rows of embedding tables.
DENSE_BYTES = {"exact": 4.0, "bf16": 2.0, "int8": 1.0 + 4 / 256, "int4": 0.5 + 2 / 64}
ROW_BYTES = {"exact": 4.0, "bf16": 2.0, "int8": 2.0, "int4": 2.0}

# How much longer a core computes for a byte that it sends or receives meanwhile, Gloo and kernel,
# caches and switches together: benchmarks/forecast/sending.py, torch 2.13, AMD Zen 5: 0.85 to 1.17
# ns in two runs, of which the larger counts: better promise too little. Messages alone, with
# nothing computed beside them, cost 0.5 to 0.7 ns.
GLOO_CPU_S_PER_BYTE = 1.15e-9

# A training step takes longer than its products: attention, elementwise passes, memory. Nearly all
# of that is the layers'; the lm_head is products.
STEP_TIME_OVER_MATMULS = 1.3


def head_part(head_flops: float, flops: float) -> float:
    """Of a row's time, what the lm_head takes, by what both compute."""
    return head_flops / (STEP_TIME_OVER_MATMULS * flops)


@dataclass(frozen=True)
class PortRate:
    """What a host's connection to the others carries, each way while the other is in use too."""

    out_bytes_per_s: float
    in_bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """Ports by host; latency_s: from the moment a message is ready to its first byte at another
    rank; local_bytes_per_s: between ranks of one host.
    """

    ports: dict[str, PortRate]
    latency_s: float
    local_bytes_per_s: float = 5e9


@dataclass(frozen=True)
class RankWork:
    """One rank's step. early_s: the first micro-batches, whole; deferred_forward_s: the deferred
    ones' way through layers and head; forward_s, head_s, backward_s: the last one, 0 without rows;
    deferred_backward_s: the deferred ones' backward passes in two parts, before its own
    (`yoked.timeline.schedule`).

    muon_s: of the matrices that it owns, the part owned_fraction of all. adamw_s: of all else.
    early_rows, deferred_rows, table_rows: rows of the tables that the tokens of the first, the
    deferred, and the last micro-batch touch. encode_s, decode_s: a number's way into its payload
    dtype and back.
    cpu_s_per_byte: what a byte sent or received costs its cores, divided by its threads.

    Where the lm_head is vocab-parallel, head_s is of this rank's part for all tokens, and
    deferred_forward_s has none of it; tokens: of this rank's rows.
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
        """The step without anything to exchange."""
        last_s = self.forward_s + self.head_s + self.backward_s
        gradients_s = (
            self.early_s + self.deferred_forward_s + sum(self.deferred_backward_s) + last_s
        )
        return gradients_s + self.muon_s + self.adamw_s


@dataclass(frozen=True)
class StepTraffic:
    """What one step exchanges. embedding_row_numbers: numbers of one row in all tables together.

    layers: groups in which the matrices' gradients leave; head_chunks, buckets: messages that the
    lm_head's gradient and the new matrices are parted into. lm_head: replicated, or
    vocab-parallel; then nothing of it is summed, and token_bytes are those of a hidden state.
    """

    head_numbers: float
    matrix_numbers: float
    embedding_row_numbers: float
    layers: int
    dense_bytes: float = 4.0
    row_bytes: float = 4.0
    head_chunks: int = 8
    buckets: int = 4
    lm_head: str = "replicated"
    token_bytes: float = 0.0


@dataclass(frozen=True)
class HostStep:
    """A host in one step; compute_s + exposed_comm_s + wait_s is the step.

    exposed_comm_s: its slowest rank stood still while bytes travelled. wait_s: while a slower rank
    computed. sent_bytes: through its port.
    """

    compute_s: float
    exposed_comm_s: float
    wait_s: float
    sent_bytes: float


@dataclass(frozen=True)
class StepForecast:
    """A step of the whole fleet. comm_s: while at least one message was on its way."""

    step_s: float
    comm_s: float
    hosts: dict[str, HostStep]

    @property
    def compute_s(self) -> float:
        """Of the host that computes longest."""
        return max(host.compute_s for host in self.hosts.values())

    @property
    def exposed_comm_s(self) -> float:
        """Of the host that stands still longest for bytes."""
        return max(host.exposed_comm_s for host in self.hosts.values())

    @property
    def hidden_comm_s(self) -> float:
        """Of comm_s, what went on behind the computation of every host."""
        return max(0.0, self.comm_s - self.exposed_comm_s)

    @property
    def sent_bytes(self) -> float:
        """By the host that sends most."""
        return max(host.sent_bytes for host in self.hosts.values())

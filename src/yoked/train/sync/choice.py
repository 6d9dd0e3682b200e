"""`--sync auto`: the network is measured, and exact sync kept unless it would cost too much.

What a step would take in each payload dtype is foreseen by `yoked.costmodel`, as `yoked plan` does,
from what was measured here a moment ago: the wire with all ranks on it, and the speed of every
rank in the model's own products.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from yoked.costmodel.matrix_owners import owner_fractions
from yoked.costmodel.messages import ring_bytes
from yoked.costmodel.model_shape import (
    ModelShape,
    ParameterCounts,
    count_parameters,
    flops_per_token,
)
from yoked.costmodel.schedule import MicroBatchSchedule, max_deferred_backwards, schedule_rows
from yoked.costmodel.simulator import simulate_step
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.costmodel.work import (
    DENSE_BYTES,
    GLOO_CPU_S_PER_BYTE,
    ROW_BYTES,
    STEP_TIME_OVER_MATMULS,
    Network,
    PortRate,
    RankWork,
    StepTraffic,
)
from yoked.ranks.exchange import read_list, read_number
from yoked.train.choose import Choice
from yoked.train.comm.communicator import Communicator
from yoked.train.lm_head.choice import row_head_part
from yoked.units import format_bytes_per_s, format_duration

# In this order: what loses least comes first. int4 is for those who ask for it.
CANDIDATES = ("exact", "bf16", "int8")
# Slower by less than this, the dtype that loses less is worth it.
WORTHWHILE = 1.05
MEASURE_S = 0.15
FIRST_BYTES, LAST_BYTES = 1 << 18, 1 << 26
COPY_BYTES_PER_S = 15e9
# AdamW reads and writes a parameter and its two moments.
ADAMW_BYTES = 24


@dataclass(frozen=True)
class RankPlace:
    """A rank: its host, its rows of a step, FLOP a second in the model's products, and the threads
    that compute; 0: a GPU does.
    """

    host: str
    rows: int
    flops_per_s: float
    threads: int


def choose_sync(
    comm: Communicator,
    ranks: Sequence[RankPlace],
    config: ModelShape,
    device_batch_size: int,
    *,
    lm_head: Choice,
) -> Choice:
    """The payload dtype for this network. Collective; all ranks choose alike.

    lm_head: which ranks have it (`choose_lm_head`).
    """
    if comm.device_group is not None:
        return Choice("sync", "exact", "NCCL between the GPUs")
    rate, latency_s = comm.all_gather_json(list(measure_network(comm)), _two_numbers)[0]
    return judge(rate, latency_s, ranks, config, device_batch_size, lm_head=lm_head)


def measure_network(comm: Communicator) -> tuple[float, float]:
    """Bytes a second that each rank sends in a large all-reduce, and seconds from ready to the
    first byte at another rank: a small one is 2(N-1) such messages.

    Collective; takes about MEASURE_S, or one message of FIRST_BYTES on a slow network.
    """
    small = torch.zeros(1)
    comm.all_reduce(small, "measuring the network").wait()
    latency_s = min(_time_s(comm, small) for _ in range(5))
    size, took_s = FIRST_BYTES, 0.0
    while True:
        payload = torch.zeros(size // 4)
        # The first of a size may find the shaper's bucket full, or TCP's window small.
        took_s = max(_time_s(comm, payload), _time_s(comm, payload))
        # Clocks differ: rank 0's says for all whether to go on.
        if comm.all_gather_json(took_s, read_number)[0] > MEASURE_S or size >= LAST_BYTES:
            hops = 2 * (comm.world_size - 1)
            return ring_bytes(size, comm.world_size) / took_s, latency_s / hops
        size *= 4


def _two_numbers(value: Any) -> tuple[float, float]:
    rate, latency_s = read_list(read_number)(value)
    return rate, latency_s


def _time_s(comm: Communicator, payload: torch.Tensor) -> float:
    started = time.perf_counter()
    comm.all_reduce(payload, "measuring the network").wait()
    return time.perf_counter() - started


def judge(
    bytes_per_s: float,
    latency_s: float,
    ranks: Sequence[RankPlace],
    config: ModelShape,
    device_batch_size: int,
    *,
    lm_head: Choice,
) -> Choice:
    """Pure: the payload dtype for a wire that carries so much, each way, on every host."""
    counts = count_parameters(config)
    network = Network({r.host: PortRate(bytes_per_s, bytes_per_s) for r in ranks}, latency_s)
    owned = owner_fractions(
        [rank.flops_per_s for rank in ranks],
        _muon_flops(config),
        counts.total - counts.transformer_matrices,
    )
    step_s: dict[str, float] = {}
    tokens = device_batch_size * config.sequence_len
    deferred = max_deferred_backwards(tokens, config.n_embd, config.n_layer)
    parts = [schedule_rows(rank.rows, device_batch_size, deferred) for rank in ranks]
    for name in CANDIDATES:
        works = [
            _work(*each, name, config, lm_head.value == "vocab-parallel")
            for each in zip(ranks, parts, owned, strict=True)
        ]
        traffic = _traffic(name, config, counts, lm_head.value)
        step_s[name] = simulate_step(works, traffic, network).step_s
    best_s = min(step_s.values())
    chosen = next(name for name in CANDIDATES if step_s[name] <= WORTHWHILE * best_s)
    figures = {f"{name}_step_s": took_s for name, took_s in step_s.items()}
    figures["wire_bytes_per_s"] = bytes_per_s
    carries = f"the network carries {format_bytes_per_s(bytes_per_s)}"
    if chosen == "exact":
        return Choice("sync", chosen, f"{carries}: nothing much would be faster", figures)
    times = f"a step is foreseen to take {format_duration(step_s[chosen])}, "
    return Choice(
        "sync", chosen, f"{carries}: {times}exact {format_duration(step_s['exact'])}", figures
    )


def _row_s(rank: RankPlace, config: ModelShape) -> float:
    return STEP_TIME_OVER_MATMULS * config.sequence_len * flops_per_token(config) / rank.flops_per_s


def _traffic(name: str, config: ModelShape, counts: ParameterCounts, lm_head: str) -> StepTraffic:
    return StepTraffic(
        head_numbers=counts.lm_head if lm_head == "replicated" else 0.0,
        matrix_numbers=counts.transformer_matrices,
        embedding_row_numbers=(counts.wte + counts.value_embeds) / config.padded_vocab_size,
        layers=config.n_layer,
        dense_bytes=DENSE_BYTES[name],
        row_bytes=ROW_BYTES[name],
        lm_head=lm_head,
        token_bytes=4.0 * config.n_embd,
    )


def _work(
    rank: RankPlace,
    parts: MicroBatchSchedule,
    owned: float,
    name: str,
    config: ModelShape,
    vocab_parallel: bool,
) -> RankWork:
    counts = count_parameters(config)
    row_s, head_part = _row_s(rank, config), row_head_part(config)
    backward_part = (1 - head_part) * 2 / 3
    last_s, (first, second) = parts.last * row_s, parts.deferred
    # Vocab-parallel, it comes at once for all rows, between forward and backward passes.
    ahead_part = backward_part / 2 if vocab_parallel else 1 - backward_part
    head_rows = rank.rows if vocab_parallel else parts.last
    lossy = name != "exact"
    return RankWork(
        host=rank.host,
        early_s=parts.early * row_s,
        deferred_forward_s=ahead_part * (first + second) * row_s,
        deferred_backward_s=(backward_part * first * row_s, backward_part * second * row_s),
        forward_s=last_s * backward_part / 2,
        head_s=head_rows * row_s * head_part,
        backward_s=last_s * backward_part,
        muon_s=owned * _muon_flops(config) / rank.flops_per_s,
        adamw_s=ADAMW_BYTES * (counts.total - counts.transformer_matrices) / COPY_BYTES_PER_S,
        owned_fraction=owned,
        table_rows=_table_rows(parts.last, config),
        early_rows=_table_rows(parts.early, config),
        deferred_rows=(_table_rows(first, config), _table_rows(second, config)),
        encode_s=16 / COPY_BYTES_PER_S if lossy else 0.0,
        decode_s=10 / COPY_BYTES_PER_S if lossy else 0.0,
        cpu_s_per_byte=GLOO_CPU_S_PER_BYTE / rank.threads if rank.threads else 0.0,
        tokens=float(rank.rows * config.sequence_len),
    )


def _muon_flops(config: ModelShape) -> float:
    """Of a step: five steps of three products with the small side."""
    return 5 * 6 * count_parameters(config).transformer_matrices * config.n_embd


def _table_rows(rows: int, config: ModelShape) -> float:
    """Rows of the tables that so many rows of text touch."""
    return expected_unique_tokens(rows * config.sequence_len, config.vocab_size)

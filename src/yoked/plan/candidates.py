"""One way to train: rows by host, sync, dtype and lm_head strategy, and the predicted step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from yoked.costmodel.assignment import assign_rows, water_fill
from yoked.costmodel.matrix_owners import owner_fractions
from yoked.costmodel.memory import rank_memory
from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    flops_per_token,
    head_flops_per_token,
    muon_flops,
)
from yoked.costmodel.schedule import MicroBatchSchedule, max_deferred_backwards, schedule_rows
from yoked.costmodel.simulator import simulate_step
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.costmodel.vocab_parallel import is_vocab_parallel
from yoked.costmodel.work import (
    DENSE_BYTES,
    GLOO_CPU_S_PER_BYTE,
    ROW_BYTES,
    Network,
    RankWork,
    StepForecast,
    StepTraffic,
    head_part,
)
from yoked.plan.costs import RankCost, codec_cost

EXACT = "exact"
# Gradients are sent layer by layer; for deeper models this many groups are accurate enough.
MAX_LAYER_GROUPS = 8


@dataclass(frozen=True)
class Candidate:
    """A way to train. rows: of a step, by host; accumulation: micro-batches of the rank that has
    most; memory_bytes: by host, all its ranks; lm_head: as `--lm-head` has it.
    """

    sync: str
    dtype: str
    device_batch_size: int
    accumulation: int
    rows: dict[str, int]
    ranks: dict[str, int]
    tokens_per_step: int
    forecast: StepForecast
    memory_bytes: dict[str, float]
    lm_head: str = "replicated"

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole fleet."""
        return self.tokens_per_step / self.forecast.step_s

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that take part."""
        return tuple(self.rows)


def build_candidate(
    shape: ModelShape,
    costs: Sequence[RankCost],
    network: Network,
    *,
    sync: str,
    rows_per_step: int,
    device_batch_size: int,
) -> Candidate:
    """Assign rows by speed and simulate the step. costs: one for each host, of one dtype."""
    ranks = [cost for cost in costs for _ in range(cost.ranks)]
    times = [partial(step_time_s, cost, device_batch_size) for cost in ranks]
    shares = assign_rows(rows_per_step, times)
    vocab_parallel = _is_vocab_parallel(shape, ranks, rows_per_step, device_batch_size)
    speeds = [cost.rows_per_s for cost in ranks]
    fractions = owner_fractions(speeds, muon_flops(shape), count_parameters(shape).adamw)
    # A rank alone has no message to hide.
    deferred = _deferred(shape, device_batch_size) if len(ranks) > 1 else 1
    parts = [schedule_rows(rows, device_batch_size, deferred) for rows in shares]
    works = [
        _work(shape, *each, device_batch_size, sync)
        for each in zip(ranks, parts, fractions, strict=True)
    ]
    if vocab_parallel:
        works = vocab_parallel_works(shape, works, ranks, shares, device_batch_size)
    lm_head = "vocab-parallel" if vocab_parallel else "replicated"
    by_host = dict.fromkeys((cost.host for cost in costs), 0)
    for cost, rows in zip(ranks, shares, strict=True):
        by_host[cost.host] += rows
    return Candidate(
        sync=sync,
        dtype=costs[0].dtype,
        device_batch_size=device_batch_size,
        accumulation=max(math.ceil(rows / device_batch_size) for rows in shares),
        rows=by_host,
        ranks={cost.host: cost.ranks for cost in costs},
        tokens_per_step=rows_per_step * shape.sequence_len,
        forecast=simulate_step(works, step_traffic(shape, sync, costs[0].dtype, lm_head), network),
        memory_bytes=_memory(shape, works, ranks, parts, device_batch_size, sync, vocab_parallel),
        lm_head=lm_head,
    )


def _is_vocab_parallel(
    shape: ModelShape, ranks: Sequence[RankCost], rows: int, device_batch_size: int
) -> bool:
    """Whether the lm_head is, in steps of so many rows, as `--lm-head auto` has it."""
    able = len(ranks) > 1 and all(rank.device == "cpu" for rank in ranks)
    return able and is_vocab_parallel(
        rows * shape.sequence_len,
        shape.padded_vocab_size,
        math.ceil(rows / device_batch_size),
        _deferred(shape, device_batch_size),
    )


def step_time_s(cost: RankCost, device_batch_size: int, rows: int) -> float:
    """Seconds of a rank's step with so many rows, but for Muon: matrices are assigned apart."""
    return cost.adamw_s + cost.rows_time_s(rows, device_batch_size)


def vocab_parallel_works(
    shape: ModelShape,
    works: Sequence[RankWork],
    ranks: Sequence[RankCost],
    rows: Sequence[int],
    device_batch_size: int,
) -> list[RankWork]:
    """The ranks' work with a vocab-parallel lm_head; no micro-batch is early."""
    found: list[RankWork] = []
    head = head_part(head_flops_per_token(shape), flops_per_token(shape))
    extra = water_fill(
        [step_time_s(cost, device_batch_size, n) for cost, n in zip(ranks, rows, strict=True)],
        [cost.amortized_row_s(device_batch_size) for cost in ranks],
        [head * count for count in rows],
    )
    counts = count_parameters(shape)
    of_adamw = counts.lm_head / counts.adamw
    for work, cost, count, more in zip(works, ranks, rows, extra, strict=True):
        head_rows = count + more / head
        rows_s = cost.rows_time_s(count, device_batch_size)
        part = head_rows / sum(rows)
        deferred_s = sum(work.deferred_backward_s) * cost.row_s / cost.backward_s
        own = head_rows / count if count else 0.0
        found.append(
            dataclasses.replace(
                work,
                deferred_forward_s=deferred_s * cost.forward_s / cost.row_s,
                head_s=own * rows_s * cost.head_s / cost.row_s,
                adamw_s=(1 - of_adamw + part * of_adamw) * work.adamw_s,
            )
        )
    return found


def _memory(
    shape: ModelShape,
    works: Sequence[RankWork],
    ranks: Sequence[RankCost],
    parts: Sequence[MicroBatchSchedule],
    device_batch_size: int,
    sync: str,
    vocab_parallel: bool,
) -> dict[str, float]:
    """Memory by host, in bytes, all its ranks."""
    many = len(ranks) > 1
    found: dict[str, float] = {}
    for work, cost, part in zip(works, ranks, parts, strict=True):
        rows = part.total
        need = rank_memory(
            shape,
            dtype=cost.dtype,
            rows=min(rows, device_batch_size),
            deferred_rows=sum(part.deferred) if many else 0,
            owned_fraction=work.owned_fraction,
            lossy=many and sync != EXACT,
            payload_bytes=DENSE_BYTES[sync] if many else 0.0,
            logits=rows * shape.sequence_len * shape.padded_vocab_size if vocab_parallel else None,
        )
        found[cost.host] = found.get(cost.host, 0.0) + need.total
    return found


def step_traffic(shape: ModelShape, sync: str, dtype: str, lm_head: str) -> StepTraffic:
    """The communication of one step. dtype: of hidden states."""
    counts = count_parameters(shape)
    return StepTraffic(
        head_numbers=counts.lm_head if lm_head == "replicated" else 0.0,
        matrix_numbers=counts.transformer_matrices,
        embedding_row_numbers=shape.embedding_row_numbers,
        layers=min(shape.n_layer, MAX_LAYER_GROUPS),
        dense_bytes=DENSE_BYTES[sync],
        row_bytes=ROW_BYTES[sync],
        lm_head=lm_head,
        token_bytes=(2.0 if dtype == "bfloat16" else 4.0) * shape.n_embd,
    )


def _work(
    shape: ModelShape,
    cost: RankCost,
    parts: MicroBatchSchedule,
    owned_fraction: float,
    device_batch_size: int,
    sync: str,
) -> RankWork:
    early, deferred, last = parts
    first_s, second_s = (cost.rows_time_s(each, device_batch_size) for each in deferred)
    backward_fraction = cost.backward_s / cost.row_s
    passes_s = last * cost.row_s + (cost.overhead_s if last else 0.0)
    stretch = passes_s / (last * cost.row_s) if last else 0.0

    def embedding_rows(rows: int) -> float:
        return expected_unique_tokens(rows * shape.sequence_len, shape.vocab_size)

    codec = codec_cost(DENSE_BYTES[sync], cost.copy_bytes_per_s, lossy=sync != EXACT)
    return RankWork(
        host=cost.host,
        early_s=cost.rows_time_s(early, device_batch_size),
        deferred_forward_s=(1 - backward_fraction) * (first_s + second_s),
        deferred_backward_s=(backward_fraction * first_s, backward_fraction * second_s),
        forward_s=last * cost.forward_s * stretch,
        head_s=last * cost.head_s * stretch,
        backward_s=last * cost.backward_s * stretch,
        muon_s=owned_fraction * cost.muon_s,
        adamw_s=cost.adamw_s,
        owned_fraction=owned_fraction,
        table_rows=embedding_rows(last),
        early_rows=embedding_rows(early),
        deferred_rows=(embedding_rows(deferred[0]), embedding_rows(deferred[1])),
        encode_s=codec.encode_s,
        decode_s=codec.decode_s,
        # NCCL sends without the cores that compute.
        cpu_s_per_byte=0.0 if cost.device == "cuda" else GLOO_CPU_S_PER_BYTE / cost.threads,
        tokens=float(parts.total * shape.sequence_len),
    )


def _deferred(shape: ModelShape, device_batch_size: int) -> int:
    tokens = device_batch_size * shape.sequence_len
    return max_deferred_backwards(tokens, shape.n_embd, shape.n_layer)

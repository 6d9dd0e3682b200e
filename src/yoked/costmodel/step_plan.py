"""What a step does on each rank, and how long it takes: for the planner, and for the trainer.

`yoked plan` gives it measured costs, `--sync auto` and `--lm-head auto` estimated ones; all else is
the same, so that both choose alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from yoked.costmodel.assignment import assign_rows, level_head_work
from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.matrix_owners import owner_fractions
from yoked.costmodel.memory import rank_memory
from yoked.costmodel.messages import GRAD_CHUNK_COLUMNS
from yoked.costmodel.model_shape import ModelShape, count_parameters, muon_flops
from yoked.costmodel.schedule import MicroBatchSchedule, max_deferred_backwards, schedule_rows
from yoked.costmodel.simulator import simulate_step
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.costmodel.work import (
    DENSE_BYTES,
    GLOO_CPU_S_PER_BYTE,
    LATE,
    LATE_HEAD,
    Network,
    RankWork,
    StepForecast,
    StepTraffic,
    compression_of,
    delayed,
    delays_of,
    is_late,
    rows_compression,
)

EXACT, REPLICATED, VOCAB_PARALLEL = "exact", "replicated", "vocab-parallel"
# What loses least comes first.
COMPRESSIONS = ("exact", "bf16", "int8", "int4")
LATES = tuple(delayed(way, name) for way in (LATE_HEAD, LATE) for name in COMPRESSIONS)
SYNCS = (*COMPRESSIONS, *LATES)
# Shown, but never chosen: its effect on the loss must be looked at first.
OPT_IN = "int4"
# What another way must be faster by: one that loses more, that all ranks must meet for in mid-step,
# that moves weights between ranks, or that a library other than the default computes.
MIN_SPEEDUP = 1.03
# Gradients are sent layer by layer; for deeper models this many groups are accurate enough.
MAX_LAYER_GROUPS = 8
# 10 Gbit/s: there the gradients of a model for one GPU need less time than its backward pass.
NCCL_BYTES_PER_S = 1.25e9


@dataclass(frozen=True)
class DelayLoss:
    """How much higher the loss is with a delay, measured with three seeds (benchmarks/late_sync).

    depth: of the model. least_tokens, most_tokens: a step had, in what was measured.
    """

    cost: str
    depth: int
    least_tokens: int
    most_tokens: int

    def was_measured(self, shape: ModelShape, tokens: int) -> bool:
        """Whether a model of this depth was measured with about so many tokens a step."""
        return shape.n_layer == self.depth and self.least_tokens <= tokens <= self.most_tokens


DELAY_LOSSES = {
    LATE_HEAD: DelayLoss("less than 0.2%", 4, 2_048, 16_384),
    LATE: DelayLoss("0.3%", 4, 2_048, 2_048),
}


@dataclass(frozen=True)
class StepPlan:
    """dtypes, rows: by rank. schedules: of these rows. owner_fractions: of Muon's work, by rank.

    head_rows: the lm_head's work by rank, in rows: those of `rows`, unless it is vocab-parallel.
    """

    sync: str
    lm_head: str
    dtypes: tuple[str, ...]
    device_batch_size: int
    rows: tuple[int, ...]
    head_rows: tuple[float, ...]
    schedules: tuple[MicroBatchSchedule, ...]
    owner_fractions: tuple[float, ...]

    @property
    def compression(self) -> str:
        """How gradients travel, late or not."""
        return compression_of(self.sync)

    @property
    def accumulation(self) -> int:
        """Micro-batches of the rank with most of them."""
        return max(math.ceil(rows / self.device_batch_size) for rows in self.rows)


def safe_syncs(shape: ModelShape, tokens: int) -> tuple[str, ...]:
    """Values of `--sync` that auto may choose for this model and so many tokens a step."""
    is_known = DELAY_LOSSES[LATE_HEAD].was_measured(shape, tokens)
    return tuple(
        sync
        for sync in SYNCS
        if compression_of(sync) != OPT_IN
        and (is_known or not is_late(sync))
        and not delays_of(sync).matrices
    )


def plan_step(
    shape: ModelShape,
    ranks: Sequence[RankCost],
    *,
    sync: str,
    lm_head: str,
    rows: Sequence[int],
    device_batch_size: int,
) -> StepPlan:
    """One way to take a step. rows: by rank."""
    assert lm_head in (REPLICATED, VOCAB_PARALLEL), lm_head
    tokens = device_batch_size * shape.sequence_len
    deferred = max_deferred_backwards(tokens, shape.n_embd, shape.n_layer)
    if len(ranks) == 1:
        deferred = 1  # a rank alone has no message to hide
    elif is_late(sync):
        deferred = 0
    head_rows = tuple(map(float, rows))
    if lm_head == VOCAB_PARALLEL:
        # The lm_head takes all micro-batches together, so all backward passes come after it.
        deferred = max(1, *(math.ceil(count / device_batch_size) for count in rows))
        step_s = [c.step_time_s(n, device_batch_size) for c, n in zip(ranks, rows, strict=True)]
        head_rows = level_head_work(rows, step_s, [cost.head_s for cost in ranks])
    speeds = [cost.rows_per_s for cost in ranks]
    return StepPlan(
        sync,
        lm_head,
        tuple(cost.dtype for cost in ranks),
        device_batch_size,
        tuple(rows),
        head_rows,
        tuple(schedule_rows(count, device_batch_size, deferred) for count in rows),
        tuple(owner_fractions(speeds, muon_flops(shape), count_parameters(shape).adamw)),
    )


def best_rows(rows: int, ranks: Sequence[RankCost], device_batch_size: int) -> tuple[int, ...]:
    """Rows by rank such that the slowest is done soonest."""
    times = [partial(cost.step_time_s, device_batch_size=device_batch_size) for cost in ranks]
    return assign_rows(rows, times)


def rank_work(plan: StepPlan, shape: ModelShape, rank: int, cost: RankCost) -> RankWork:
    """One rank's work in a step, in the order in which it is done."""
    batch, owned = plan.device_batch_size, plan.owner_fractions[rank]
    rows, head_rows = plan.rows[rank], plan.head_rows[rank]
    early, deferred, last, waits = plan.schedules[rank]
    first_s, second_s = (cost.rows_time_s(each, batch) for each in deferred)
    deferred_s = first_s + second_s
    backward_fraction = cost.backward_s / cost.row_s
    passes_s = last * cost.row_s + (cost.overhead_s if last else 0.0)
    # The overhead is spread over the three passes in proportion to their time.
    stretch = passes_s / (last * cost.row_s) if last else 0.0
    if plan.lm_head == VOCAB_PARALLEL:
        # The lm_head takes all micro-batches together: deferred forward passes are of layers alone.
        deferred_forward_s = deferred_s * cost.forward_s / cost.row_s
        # A rank without rows gets no part from `level_head_work`.
        rows_s = cost.rows_time_s(rows, batch) * head_rows / rows if rows else 0.0
        head_s = rows_s * cost.head_s / cost.row_s
        counts = count_parameters(shape)
        of_adamw = counts.lm_head / counts.adamw  # the lm_head's fraction of AdamW
        # A rank updates its own part of the lm_head, but the whole tables.
        adamw_s = cost.adamw_s * (1 - of_adamw + of_adamw * head_rows / sum(plan.rows))
    else:
        if not waits:
            backward_fraction = 1.0  # both passes, one after the other
        deferred_forward_s = (1 - backward_fraction) * deferred_s
        head_s = last * cost.head_s * stretch
        adamw_s = cost.adamw_s

    def embedding_rows(of_rows: int) -> float:
        return expected_unique_tokens(of_rows * shape.sequence_len, shape.vocab_size)

    # A codec is bound by memory. To encode a number it reads value and residual and writes residual
    # and payload; to decode one it reads payload and sum and writes the sum.
    payload_bytes = DENSE_BYTES[plan.compression]
    lossy = plan.compression != EXACT
    encode_s = (12 + payload_bytes) / cost.copy_bytes_per_s if lossy else 0.0
    decode_s = (8 + payload_bytes) / cost.copy_bytes_per_s if lossy else 0.0
    return RankWork(
        host=cost.host,
        early_s=cost.rows_time_s(early, batch),
        deferred_forward_s=deferred_forward_s,
        deferred_backward_s=(backward_fraction * first_s, backward_fraction * second_s),
        forward_s=last * cost.forward_s * stretch,
        head_s=head_s,
        backward_s=last * cost.backward_s * stretch,
        muon_s=owned * cost.muon_s,
        adamw_s=adamw_s,
        owned_fraction=owned,
        table_rows=embedding_rows(last),
        early_rows=embedding_rows(early),
        deferred_rows=(embedding_rows(deferred[0]), embedding_rows(deferred[1])),
        encode_s=encode_s,
        decode_s=decode_s,
        # Beside a GPU, the cores that send do not compute.
        cpu_s_per_byte=GLOO_CPU_S_PER_BYTE / cost.cores if cost.device == "cpu" else 0.0,
        tokens=float(rows * shape.sequence_len),
    )


def step_traffic(plan: StepPlan, shape: ModelShape) -> StepTraffic:
    """The communication of one step."""
    counts = count_parameters(shape)
    # Hidden states travel, whatever the sync, in the dtype of the computation: one for all ranks.
    hidden_bytes = 2.0 if plan.dtypes[0] == "bfloat16" else 4.0
    return StepTraffic(
        head_numbers=counts.lm_head if plan.lm_head == REPLICATED else 0.0,
        head_chunks=math.ceil(shape.padded_vocab_size / GRAD_CHUNK_COLUMNS),
        matrix_numbers=counts.transformer_matrices,
        embedding_row_numbers=shape.embedding_row_numbers,
        table_rows=shape.padded_vocab_size,
        layers=min(shape.n_layer, MAX_LAYER_GROUPS),
        dense_bytes=DENSE_BYTES[plan.compression],
        row_bytes=DENSE_BYTES[rows_compression(plan.compression, shape.table_widths)],
        late=delays_of(plan.sync),
        lm_head=plan.lm_head,
        token_bytes=hidden_bytes * shape.n_embd,
    )


def plan_memory(
    plan: StepPlan, shape: ModelShape, tables_on_host: Collection[int] = ()
) -> list[float]:
    """Peak memory by rank, in bytes; of a GPU's, on the GPU. tables_on_host: of these ranks."""
    many = len(plan.rows) > 1
    return [
        rank_memory(
            shape,
            dtype=dtype,
            rows=min(rows, plan.device_batch_size),
            step_rows=rows,
            deferred_rows=sum(schedule.deferred) if many and schedule.waits else 0,
            owned_fraction=owned,
            payload_bytes=DENSE_BYTES[plan.compression] if many else 0.0,
            late=delays_of(plan.sync),
            tables_on_host=rank in tables_on_host,
            # All tokens' logits of this rank's part of the vocabulary.
            logits=(
                round(head_rows * shape.sequence_len * shape.padded_vocab_size)
                if plan.lm_head == VOCAB_PARALLEL
                else None
            ),
        )
        for rank, (dtype, rows, schedule, owned, head_rows) in enumerate(
            zip(
                plan.dtypes,
                plan.rows,
                plan.schedules,
                plan.owner_fractions,
                plan.head_rows,
                strict=True,
            )
        )
    ]


def fits_memory(plan: StepPlan, shape: ModelShape, memory_bytes: Sequence[float]) -> bool:
    """Whether every rank may use the memory that it needs. memory_bytes: by rank."""
    needs = plan_memory(plan, shape)
    return all(need <= most for need, most in zip(needs, memory_bytes, strict=True))


def nccl_suits(rate: float | None) -> bool:
    """Whether ranks that all have a GPU meet by NCCL. rate: bytes a second; None: within a host.

    Its collectives carry float32 and begin when backward is through; over a home's Ethernet Gloo's
    messages, compressed and on their way meanwhile, are done sooner.
    """
    return rate is None or rate >= NCCL_BYTES_PER_S


def why_not_vocab_parallel(ranks: Sequence[RankCost]) -> str | None:
    """Why the lm_head cannot be vocab-parallel between these ranks; None: it can."""
    if len(ranks) == 1:
        return "there is one rank"
    if any(cost.device != "cpu" for cost in ranks):
        return "not all ranks compute on a CPU"
    if len({cost.dtype for cost in ranks}) > 1:
        return "not all ranks compute in one dtype"
    return None


def predict_heads(
    shape: ModelShape,
    ranks: Sequence[RankCost],
    network: Network,
    *,
    sync: str,
    rows: Sequence[int],
    device_batch_size: int,
    lm_head: str | None = None,
) -> dict[str, tuple[StepPlan, StepForecast]]:
    """A step with each strategy for the lm_head that these ranks can have, by `--lm-head`.

    lm_head: only with that one.
    """
    heads = [REPLICATED] if why_not_vocab_parallel(ranks) else [REPLICATED, VOCAB_PARALLEL]
    found = {}
    for name in heads if lm_head is None else [lm_head]:
        plan = plan_step(
            shape, ranks, sync=sync, lm_head=name, rows=rows, device_batch_size=device_batch_size
        )
        works = [rank_work(plan, shape, rank, cost) for rank, cost in enumerate(ranks)]
        found[name] = plan, simulate_step(works, step_traffic(plan, shape), network)
    return found


def faster_head(
    found: Mapping[str, tuple[StepPlan, StepForecast]],
    shape: ModelShape,
    memory_bytes: Sequence[float],
) -> str:
    """Vocab-parallel where that is faster by MIN_SPEEDUP, and fits; else a replicated lm_head.

    found: as `predict_heads` returns it; if it has one strategy, that one. memory_bytes: that each
    rank may use.
    """
    if len(found) == 1:
        return next(iter(found))
    (parallel, parallel_step), (_, replicated_step) = found[VOCAB_PARALLEL], found[REPLICATED]
    faster = parallel_step.step_s * MIN_SPEEDUP <= replicated_step.step_s
    chosen = faster and fits_memory(parallel, shape, memory_bytes)
    return VOCAB_PARALLEL if chosen else REPLICATED

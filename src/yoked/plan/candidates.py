"""One way to train: rows by host, sync, dtype and lm_head strategy, and the predicted step."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from yoked.plan.costs import RankCost, codec_cost
from yoked.plan.memory import rank_memory
from yoked.plan.shape import (
    Shape,
    count_parameters,
    flops_per_token,
    head_flops_per_token,
    muon_flops,
)
from yoked.timeline.deferral import Parts, deferred_backwards, part_batches, part_rows
from yoked.timeline.division import is_divided
from yoked.timeline.evening import Evening, Handover, extra_tokens, head_part
from yoked.timeline.fastest import OneHead, deferred_by_rank, fastest_has_it, with_one_head
from yoked.timeline.ownership import owner_fractions
from yoked.timeline.simulator import simulate_step
from yoked.timeline.token_stats import expected_unique_tokens
from yoked.timeline.work import (
    DENSE_BYTES,
    GLOO_CPU_S_PER_BYTE,
    ROW_BYTES,
    Network,
    RankWork,
    StepForecast,
    StepTraffic,
)

EXACT = "exact"
# Gradients are sent layer by layer; for deeper models this many groups are accurate enough.
MAX_LAYER_GROUPS = 8


@dataclass(frozen=True)
class Candidate:
    """One way to train, and its predicted step.

    rows: of a step, by host. accumulation: micro-batches of the rank with most of them.
    memory_bytes: by host, all its ranks. lm_head: a value of `--lm-head`; head_host: the only host
    with an lm_head, if it is fastest. handovers: lm_head work that ranks do for each other.
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
    handovers: tuple[Handover, ...] = ()
    lm_head: str = "whole"
    head_host: str | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole fleet."""
        return self.tokens_per_step / self.forecast.step_s

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that take part."""
        return tuple(self.rows)


def build_candidate(
    shape: Shape,
    costs: Sequence[RankCost],
    network: Network,
    *,
    sync: str,
    rows_per_step: int,
    device_batch_size: int,
) -> Candidate:
    """Assign rows by speed and simulate the step. costs: one for each host, of one dtype."""
    ranks = [cost for cost in costs for _ in range(cost.ranks)]
    shares = assign_rows(rows_per_step, ranks, device_batch_size)
    divided = _divides(shape, ranks, rows_per_step, device_batch_size)
    evening = _evening(shape, ranks, device_batch_size, divided=divided)
    handovers: tuple[Handover, ...] = ()
    one = None if divided else _one_head(shape, ranks, rows_per_step, device_batch_size)
    if one is not None:
        shares, evening = assign_rows(rows_per_step, ranks, device_batch_size, one), None
    if evening is not None:

        def took_s(rank: int, rows: float) -> float:
            return ranks[rank].adamw_s + rows * ranks[rank].amortized_row_s(device_batch_size)

        shares = list(evening.best_rows(shares, took_s))
        handovers = evening.evened(shares, took_s)
    speeds = [cost.rows_per_s for cost in ranks]
    fractions = owner_fractions(speeds, muon_flops(shape), count_parameters(shape).adamw)
    has_head = None if one is None else one.rank
    deferred = deferred_by_rank(len(ranks), _deferred(shape, device_batch_size), has_head)
    parts = [
        part_rows(rows, device_batch_size, count)
        for rows, count in zip(shares, deferred, strict=True)
    ]
    works = [
        _work(shape, *each, device_batch_size, sync)
        for each in zip(ranks, parts, fractions, strict=True)
    ]
    if divided:
        works = divided_works(shape, works, ranks, shares, handovers, device_batch_size)
    elif one is not None:
        works = with_one_head(works, one.rank, [cost.head_s for cost in ranks], parts)
    elif evening is not None:
        works = evened_works(works, handovers, evening, shares, ranks)
    lm_head = "divided" if divided else "whole" if one is None else "fastest"
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
        memory_bytes=_memory(shape, works, ranks, parts, device_batch_size, sync, divided),
        handovers=handovers,
        lm_head=lm_head,
        head_host=None if one is None else ranks[one.rank].host,
    )


def _divides(shape: Shape, ranks: Sequence[RankCost], rows: int, device_batch_size: int) -> bool:
    """Whether `--lm-head auto` divides the lm_head by vocabulary in steps of so many rows."""
    able = len(ranks) > 1 and all(rank.device == "cpu" for rank in ranks)
    return able and is_divided(
        rows * shape.sequence_len,
        shape.padded_vocab_size,
        math.ceil(rows / device_batch_size),
        _deferred(shape, device_batch_size),
    )


def _one_head(
    shape: Shape, ranks: Sequence[RankCost], rows: int, device_batch_size: int
) -> OneHead | None:
    """The rank to which `--lm-head auto` gives all of the lm_head; None: every rank has it."""
    if len({rank.host for rank in ranks}) == 1 or all(rank.device == "cuda" for rank in ranks):
        return None
    speeds = [rank.rows_per_s for rank in ranks]
    part = head_part(head_flops_per_token(shape), flops_per_token(shape))
    tokens = rows * shape.sequence_len
    waiting = _deferred(shape, device_batch_size)
    if not fastest_has_it(speeds, part, tokens, shape.padded_vocab_size, waiting):
        return None
    return OneHead(speeds.index(max(speeds)), part)


def _evening(
    shape: Shape, ranks: Sequence[RankCost], device_batch_size: int, *, divided: bool
) -> Evening | None:
    """How lm_head work is handed over; None on a single host, and on NCCL."""
    hosts = {rank.host for rank in ranks}
    if len(hosts) == 1 or all(rank.device == "cuda" for rank in ranks):
        return None
    part = head_part(head_flops_per_token(shape), flops_per_token(shape))
    deferred = _deferred(shape, device_batch_size)
    return Evening(device_batch_size, deferred, shape.sequence_len, part, divided)


def divided_works(
    shape: Shape,
    works: Sequence[RankWork],
    ranks: Sequence[RankCost],
    rows: Sequence[int],
    handovers: Sequence[Handover],
    device_batch_size: int,
) -> list[RankWork]:
    """The ranks' work with an lm_head divided by vocabulary. No micro-batch is early."""
    found: list[RankWork] = []
    extra = extra_tokens(handovers, len(ranks))
    for work, cost, count, more in zip(works, ranks, rows, extra, strict=True):
        tokens = count * shape.sequence_len
        rows_s = cost.rows_time_s(count, device_batch_size)
        part = (tokens + more) / (sum(rows) * shape.sequence_len)
        deferred_s = sum(work.deferred_backward_s) * cost.row_s / cost.backward_s
        own = (tokens + more) / tokens if tokens else 0.0
        found.append(
            dataclasses.replace(
                work,
                deferred_forward_s=deferred_s * cost.forward_s / cost.row_s,
                head_s=own * rows_s * cost.head_s / cost.row_s,
                # Without the idle embedding rows AdamW is nearly all lm_head.
                adamw_s=part * work.adamw_s,
            )
        )
    return found


def evened_works(
    works: Sequence[RankWork],
    handovers: Sequence[Handover],
    evening: Evening,
    rows: Sequence[int],
    ranks: Sequence[RankCost],
) -> list[RankWork]:
    """Add handed-over work to the ranks' work, at its place in the step."""
    found = list(works)
    for each in handovers:
        for rank, batch, sign in (
            (each.source, evening.source_batch(each.source, rows), -1),
            (each.helper, evening.helper_batch(each, rows), 1),
        ):
            count, work = evening.batches(rows[rank]), found[rank]
            parts, last = part_batches(count, evening.deferred), batch == count - 1
            place = "early_s" if batch < parts.early else "head_s" if last else "deferred_forward_s"
            row_s = ranks[rank].amortized_row_s(evening.batch_rows)
            changed_s = getattr(work, place) + sign * evening.work(each.tokens) * row_s
            found[rank] = dataclasses.replace(work, **{place: max(0.0, changed_s)})
    return found


def _memory(
    shape: Shape,
    works: Sequence[RankWork],
    ranks: Sequence[RankCost],
    parts: Sequence[Parts],
    device_batch_size: int,
    sync: str,
    divided: bool,
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
            logits=rows * shape.sequence_len * shape.padded_vocab_size if divided else None,
        )
        found[cost.host] = found.get(cost.host, 0.0) + need.total
    return found


def assign_rows(
    rows: int, ranks: Sequence[RankCost], device_batch_size: int, one: OneHead | None = None
) -> list[int]:
    """Assign whole rows to ranks such that the slowest rank finishes as early as possible.

    Each row goes to the rank that would finish it first; ties go to the lower rank. A rank may get
    no rows. one: the rank that has all of the lm_head.
    """
    shares = [0] * len(ranks)

    def done_s(rank: int) -> float:
        cost, own_rows = ranks[rank], shares[rank] + 1
        compute_s = cost.adamw_s + cost.rows_time_s(own_rows, device_batch_size)
        if one is None:
            return compute_s
        return compute_s + ((rows if rank == one.rank else 0) - own_rows) * cost.head_s

    queue = [(done_s(rank), rank) for rank in range(len(ranks))]
    heapq.heapify(queue)
    for _ in range(rows):
        _, rank = queue[0]
        shares[rank] += 1
        heapq.heapreplace(queue, (done_s(rank), rank))
    return shares


def step_traffic(shape: Shape, sync: str, dtype: str, lm_head: str) -> StepTraffic:
    """The communication of one step. dtype: of hidden states."""
    counts = count_parameters(shape)
    return StepTraffic(
        head_numbers=counts.lm_head if lm_head == "whole" else 0.0,
        matrix_numbers=counts.transformer_matrices,
        embedding_row_numbers=shape.embedding_row_numbers,
        layers=min(shape.depth, MAX_LAYER_GROUPS),
        dense_bytes=DENSE_BYTES[sync],
        row_bytes=ROW_BYTES[sync],
        lm_head=lm_head,
        token_bytes=(2.0 if dtype == "bfloat16" else 4.0) * shape.n_embd,
    )


def _work(
    shape: Shape,
    cost: RankCost,
    parts: Parts,
    owned_fraction: float,
    device_batch_size: int,
    sync: str,
) -> RankWork:
    early, deferred, last = parts
    first_s, second_s = (cost.rows_time_s(each, device_batch_size) for each in deferred)
    backward_fraction = cost.backward_s / cost.row_s
    passes_s = last * cost.row_s + (cost.overhead_s if last else 0.0)
    stretch = passes_s / (last * cost.row_s) if last else 0.0
    counts = count_parameters(shape)
    # Only the compiled kernels (CPU) can update the unused embedding rows apart.
    idle_fraction = counts.tables / counts.adamw if cost.device == "cpu" else 0.0

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
        adamw_s=(1 - idle_fraction) * cost.adamw_s,
        idle_rows_s=idle_fraction * cost.adamw_s,
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


def _deferred(shape: Shape, device_batch_size: int) -> int:
    tokens = device_batch_size * shape.sequence_len
    return deferred_backwards(tokens, shape.n_embd, shape.depth)

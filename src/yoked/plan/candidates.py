"""One way to train: rows by host, sync, dtype and lm_head strategy, and the predicted step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import best_rows, faster_head, plan_memory, predict_heads
from yoked.costmodel.work import Network, StepForecast


@dataclass(frozen=True)
class Candidate:
    """One way to train, and its predicted step.

    rows: of a step, by host. accumulation: micro-batches of the rank with most of them.
    memory_bytes: by host, all its ranks. lm_head: a value of `--lm-head`.
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
    lm_head: str

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
    memory_bytes: Mapping[str, float],
) -> Candidate:
    """Assign rows by speed and simulate the step. costs: one for each host, of one dtype.

    memory_bytes: that may be used, by host.
    """
    ranks = [cost for cost in costs for _ in range(cost.ranks)]
    # Ranks of a host share its memory.
    usable_bytes = [memory_bytes[cost.host] / cost.ranks for cost in ranks]
    found = predict_heads(
        shape,
        ranks,
        network,
        sync=sync,
        rows=best_rows(rows_per_step, ranks, device_batch_size),
        device_batch_size=device_batch_size,
    )
    plan, forecast = found[faster_head(found, shape, usable_bytes)]
    by_host = dict.fromkeys((cost.host for cost in costs), 0)
    needs = dict.fromkeys(by_host, 0.0)
    for cost, rows, need in zip(ranks, plan.rows, plan_memory(plan, shape), strict=True):
        by_host[cost.host] += rows
        needs[cost.host] += need
    return Candidate(
        sync=sync,
        dtype=plan.dtype,
        device_batch_size=device_batch_size,
        accumulation=plan.accumulation,
        rows=by_host,
        ranks={cost.host: cost.ranks for cost in costs},
        tokens_per_step=rows_per_step * shape.sequence_len,
        forecast=forecast,
        memory_bytes=needs,
        lm_head=plan.lm_head,
    )

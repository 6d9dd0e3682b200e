from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.costmodel.compute_cost import COPY_BYTES_PER_S
from yoked.costmodel.memory import rank_memory
from yoked.costmodel.model_shape import ModelShape, head_flops_per_token
from yoked.costmodel.step_plan import REPLICATED, plan_step, rank_work
from yoked.costmodel.work import DENSE_BYTES
from yoked.errors import YokedError
from yoked.plan.costs import rank_costs
from yoked.plan.network import network_of
from yoked.plan.search import PlanRequest, make_plan
from yoked.records.measurement import Measurement

Fleet = Callable[..., Measurement]


def test_the_measured_model_costs_what_was_measured(fleet: Fleet, anchor: ModelShape) -> None:
    (costs,) = rank_costs(fleet(), anchor).values()
    assert costs[0].scaled_from is None
    assert costs[0].rows_time_s(2, device_batch_size=2) == pytest.approx(0.88)
    # What does not grow with the rows is paid for each micro-batch.
    assert costs[0].rows_time_s(2, device_batch_size=1) == pytest.approx(0.90)


def test_another_model_is_scaled_by_its_flops(fleet: Fleet, anchor: ModelShape) -> None:
    twice = replace(anchor, vocab_size=2 * anchor.vocab_size)
    own = rank_costs(fleet(), anchor)["float32"][0]
    scaled = rank_costs(fleet(), twice)["float32"][0]
    assert scaled.scaled_from == anchor
    ratio = head_flops_per_token(twice) / head_flops_per_token(anchor)
    assert scaled.head_s == pytest.approx(ratio * own.head_s)
    assert scaled.forward_s == pytest.approx(own.forward_s)


def test_a_host_of_which_nothing_is_known_is_named(fleet: Fleet, anchor: ModelShape) -> None:
    known = fleet()
    half = replace(known, step_costs=known.step_costs[:1])
    with raises_fault("cost-unmeasured"):
        rank_costs(half, anchor)


def test_a_row_more_costs_something_even_where_one_took_as_long_as_several(
    fleet: Fleet, anchor: ModelShape
) -> None:
    known = fleet()
    flat = replace(known, step_costs=tuple(replace(c, overhead_s=1.0) for c in known.step_costs))
    cost = rank_costs(flat, anchor)["float32"][0]
    assert cost.row_s > 0
    assert cost.rows_time_s(2, device_batch_size=2) == pytest.approx(0.88)
    assert make_plan(PlanRequest(anchor, 4096), flat).chosen.tokens_per_second > 0


def test_codecs_work_in_the_hosts_memory_which_its_ranks_share(
    fleet: Fleet, anchor: ModelShape
) -> None:
    known = fleet()
    on_gpu = replace(known.compute[1], device="cuda:0", copy_bytes_per_s=3e12)
    mixed = replace(known, ranks={"a": 4, "b": 1}, compute=(known.compute[0], on_gpu))
    shared, beside_a_gpu = rank_costs(mixed, anchor)["float32"]
    assert shared.copy_bytes_per_s == pytest.approx(15.6e9 / 4)
    assert beside_a_gpu.copy_bytes_per_s == COPY_BYTES_PER_S


def test_only_a_lossy_payload_costs_a_codec(fleet: Fleet, anchor: ModelShape) -> None:
    costs = rank_costs(fleet(), anchor)["float32"]

    def encode_s(sync: str) -> float:
        plan = plan_step(
            anchor, costs, sync=sync, lm_head=REPLICATED, rows=(2, 2), device_batch_size=2
        )
        return rank_work(plan, anchor, 0, costs[0]).encode_s

    assert encode_s("exact") == 0
    assert encode_s("int8") == pytest.approx((12 + DENSE_BYTES["int8"]) / 15.6e9)


@pytest.mark.parametrize(("rows", "peak_bytes"), [(2, 1.022e9), (8, 1.378e9)])
def test_memory_is_what_a_run_took(anchor: ModelShape, rows: int, peak_bytes: float) -> None:
    need = rank_memory(anchor, dtype="float32", rows=rows, owned_fraction=1.0, payload_bytes=0.0)
    assert need == pytest.approx(peak_bytes, rel=0.05)


def test_a_lossy_sync_keeps_what_rounding_lost(anchor: ModelShape) -> None:
    def need(payload_bytes: float) -> float:
        return rank_memory(
            anchor, dtype="float32", rows=2, owned_fraction=0.5, payload_bytes=payload_bytes
        )

    # Payloads of a byte each take 34.6 MB less than float32, what they lost 46.1 MB.
    assert need(1.0) - need(4.0) == pytest.approx(46.1e6 - 34.6e6, rel=0.01)


def test_a_measurement_without_time_or_rate_is_refused(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    known = fleet()
    idle = replace(known.step_costs[0], forward_s=0.0, head_s=0.0, backward_s=0.0)
    with pytest.raises(YokedError) as caught:
        rank_costs(replace(known, step_costs=(idle, *known.step_costs[1:])), anchor)
    assert str(caught.value) == snapshot
    dead = replace(known.links[0], both_ways_bytes_per_s=0.0)
    with raises_fault("link-idle"):
        network_of(replace(known, links=(dead, known.links[1])), ["a", "b"])

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.costmodel.compute_cost import RankCost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.simulator import simulate_step
from yoked.costmodel.step_plan import SYNCS, best_rows, safe_syncs
from yoked.costmodel.work import (
    GLOO_CPU_S_PER_BYTE,
    Network,
    PortRate,
    RankWork,
    StepTraffic,
    is_late,
    less_delayed,
)
from yoked.errors import UsageError
from yoked.plan.explain import Target, explanation, verdict
from yoked.plan.network import network_of
from yoked.plan.search import PlanRequest, choose_for_all_hosts, make_plan
from yoked.records.measurement import Collective, Measurement
from yoked.units import format_count

Fleet = Callable[..., Measurement]
TARGET = Target(steps=1000, prices_per_hour={})


def cost(row_s: float, overhead_s: float = 0.0, adamw_s: float = 0.0) -> RankCost:
    return RankCost(
        host="h",
        device="cpu",
        dtype="float32",
        cores=1,
        ranks=1,
        forward_s=row_s,
        head_s=0.0,
        backward_s=0.0,
        overhead_s=overhead_s,
        adamw_s=adamw_s,
        muon_s=0.0,
        copy_bytes_per_s=1e10,
        measured_rows=2,
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 3), st.floats(0, 1)), min_size=2, max_size=3),
    st.integers(0, 9),
)
def test_rows_are_shared_out_as_well_as_can_be(
    speeds: list[tuple[float, float]], rows: int
) -> None:
    ranks = [cost(row_s, adamw_s=adamw_s) for row_s, adamw_s in speeds]

    def slowest_s(shares: tuple[int, ...]) -> float:
        return max(
            each.adamw_s + each.rows_time_s(count, 2)
            for each, count in zip(ranks, shares, strict=True)
        )

    shares = best_rows(rows, ranks, 2)
    assert sum(shares) == rows
    every = itertools.product(range(rows + 1), repeat=len(ranks))
    best_s = min(slowest_s(each) for each in every if sum(each) == rows)
    assert slowest_s(tuple(shares)) == pytest.approx(best_s)


def test_a_hopeless_host_gets_no_row() -> None:
    assert best_rows(4, [cost(1.0), cost(100.0)], 2) == (4, 0)


def test_two_equal_hosts_on_a_gigabit_nearly_double_at_large_steps(
    fleet: Fleet, anchor: ModelShape
) -> None:
    plan = make_plan(PlanRequest(anchor, 16_384), fleet())
    assert plan.chosen.sync == "exact"
    assert plan.chosen.rows == {"a": 16, "b": 16}
    assert 1.9 < plan.speedup < 2.05
    assert plan.excluded == ()


def test_a_slow_wire_wants_a_smaller_payload(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    plan = make_plan(PlanRequest(anchor, 2048), fleet(gbit=0.1))
    rates = {each.sync: each.tokens_per_second for each in plan.candidates}
    assert rates["exact"] < rates["bf16"] < rates["int8"]
    assert plan.chosen.sync in ("int8", "int4")
    assert "\n".join(explanation(plan, TARGET)) == snapshot


@pytest.mark.parametrize("gbit", [0.4, 0.7, 1.0])
def test_of_what_is_nearly_as_fast_the_least_lossy_is_taken(
    fleet: Fleet, anchor: ModelShape, gbit: float
) -> None:
    plan = make_plan(PlanRequest(anchor, 16_384), fleet(gbit=gbit))
    rates = {each.sync: each.tokens_per_second for each in plan.candidates}
    near = [sync for sync in SYNCS if rates.get(sync, 0) * 1.03 >= max(rates.values())]
    assert plan.chosen.sync == near[0]


@pytest.mark.parametrize("gbit", [0.02, 0.1, 1.0])
def test_a_delay_that_gains_less_than_3_percent_is_not_shown(
    fleet: Fleet, anchor: ModelShape, gbit: float
) -> None:
    request, measurement = PlanRequest(anchor, 16_384), fleet(gbit=gbit)
    rates = {c.sync: c.tokens_per_second for c in make_plan(request, measurement).candidates}
    for sync in filter(is_late, SYNCS):
        found = choose_for_all_hosts(request, measurement, sync)  # named, it is there
        less = [choose_for_all_hosts(request, measurement, way) for way in less_delayed(sync)]
        gains = all(found.tokens_per_second > 1.03 * each.tokens_per_second for each in less)
        assert gains == (sync in rates)


def test_what_is_chosen_unnamed_has_a_known_loss(anchor: ModelShape) -> None:
    on_time = ("exact", "bf16", "int8")
    for tokens in (2048, 8192, 16_384):
        head_late = ("late-head", "late-head:bf16", "late-head:int8")
        assert safe_syncs(anchor, tokens) == (*on_time, *head_late)
    for tokens in (1024, 32_768):
        assert safe_syncs(anchor, tokens) == on_time
    assert safe_syncs(replace(anchor, n_layer=6), 2048) == on_time


def test_shares_follow_the_speeds(fleet: Fleet, anchor: ModelShape) -> None:
    plan = make_plan(PlanRequest(anchor, 16_384), fleet(slower={"fast": 1.0, "slow": 4.0}))
    assert plan.chosen.rows["fast"] in range(24, 28)
    assert plan.efficiency > 0.9


def test_parts_of_the_lm_head_make_up_for_what_whole_rows_leave_uneven(
    fleet: Fleet, anchor: ModelShape
) -> None:
    # Two rows each: whole ones leave the fast host waiting for a quarter of the step.
    plan = make_plan(PlanRequest(anchor, 2048), fleet(gbit=10, slower={"fast": 1.0, "slow": 1.33}))
    equal = make_plan(PlanRequest(anchor, 2048), fleet(gbit=10, slower={"a": 1.33, "b": 1.33}))

    assert plan.chosen.rows == {"fast": 2, "slow": 2}
    assert plan.chosen.tokens_per_second > 1.06 * equal.chosen.tokens_per_second
    assert plan.chosen.forecast.hosts["fast"].wait_s < 0.1 * plan.chosen.forecast.step_s


def test_in_small_steps_the_lm_head_is_vocab_parallel(fleet: Fleet, anchor: ModelShape) -> None:
    small, large = (
        next(
            each
            for each in make_plan(PlanRequest(anchor, tokens), fleet()).candidates
            if each.sync == "exact"
        )
        for tokens in (2048, 8192)
    )
    megabytes = [each.forecast.sent_bytes / 1e6 for each in (small, large)]
    # Of 2,048 tokens and width 256: hidden states and their gradients 2.1 MB, not 33.6.
    assert [each.lm_head for each in (small, large)] == ["vocab-parallel", "replicated"]
    assert 16 < megabytes[0] < 22
    assert megabytes[1] > 46


def test_a_host_that_only_costs_is_left_at_home(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    slower = {"a": 1.0, "b": 1.0, "old": 60.0}
    plan = make_plan(PlanRequest(anchor, 2048), fleet(slower=slower))
    (gain,) = [gain for gain in plan.host_gains if gain.host == "old"]
    assert plan.excluded == ("old",)
    assert gain.gain < 0.01
    assert explanation(plan, TARGET) == snapshot


def test_no_fleet_is_advised_where_one_host_is_faster(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    plan = make_plan(PlanRequest(anchor, 2048), fleet(gbit=0.001))
    assert plan.chosen.hosts == ("a",)
    assert plan.speedup == 1
    assert verdict(plan) == snapshot


def test_what_is_never_chosen_is_told_apart_from_what_is(fleet: Fleet, anchor: ModelShape) -> None:
    # int4 would be faster than one host alone, and nothing else.
    plan = make_plan(PlanRequest(anchor, 4096), fleet(gbit=0.1))
    said = explanation(plan, TARGET)
    rates = {each.sync: each.tokens_per_second for each in plan.candidates}
    assert rates["int4"] > 1.03 * plan.chosen.tokens_per_second
    assert plan.chosen.sync != "int4"
    assert any(line.startswith("--sync int4 on 2 hosts would reach") for line in said)
    assert not any("int4" in line and "too little" in line for line in said)


def test_hosts_together_are_told_by_what_would_be_chosen(fleet: Fleet, anchor: ModelShape) -> None:
    plan = make_plan(PlanRequest(anchor, 2048), fleet(gbit=0.03))
    rates = {each.sync: each.tokens_per_second for each in plan.candidates}
    together = max(("exact", "bf16", "int8"), key=lambda sync: rates[sync])
    assert plan.chosen.hosts == ("a",)
    assert verdict(plan).endswith(f"{format_count(round(rates[together]))} with --sync {together}")


def test_what_does_not_fit_is_not_chosen_while_something_does(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    tight = replace(fleet(), memory_bytes={"a": 8_000_000_000, "b": 500_000_000})
    plan = make_plan(PlanRequest(anchor, 16_384), tight)
    said = "\n".join(explanation(plan, TARGET))
    assert plan.chosen.hosts == ("a",)
    assert plan.excluded == ("b",)
    assert plan.chosen.over_memory == {}
    assert said == snapshot
    assert "adds" not in said


def test_where_nothing_fits_the_plan_says_what_would(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    tiny = replace(fleet(), memory_bytes={"a": 500_000_000, "b": 500_000_000})
    plan = make_plan(PlanRequest(anchor, 16_384), tiny)
    said = "\n".join(explanation(plan, TARGET))
    assert plan.chosen.over_memory.keys() == set(plan.chosen.hosts)
    # The smallest micro-batch was tried.
    assert said == snapshot
    asked = make_plan(PlanRequest(anchor, 16_384, device_batch_size=2), tiny)
    assert "\n".join(explanation(asked, TARGET)) == snapshot


def test_a_model_that_was_not_probed_is_told_with_all_that_the_probe_would_need(
    fleet: Fleet, anchor: ModelShape
) -> None:
    longer = replace(anchor, sequence_len=1024, vocab_size=16_384)
    (said,) = [
        line
        for line in explanation(make_plan(PlanRequest(longer, 16_384), fleet()), TARGET)
        if "scaled" in line
    ]
    flags = "--depth 4 --head-dim 64 --max-seq-len 1024 --vocab-size 16384"
    assert f"`yoked probe {flags}`" in said


def test_a_model_with_other_windows_is_another_one(fleet: Fleet, anchor: ModelShape) -> None:
    windows = replace(anchor, window_pattern="SSSL")
    said = explanation(make_plan(PlanRequest(windows, 16_384), fleet()), TARGET)
    assert any("scaled" in line and "--window-pattern SSSL`" in line for line in said)


def test_time_and_cost_to_the_target(fleet: Fleet, anchor: ModelShape) -> None:
    plan = make_plan(PlanRequest(anchor, 16_384), fleet())
    target = Target(steps=3600, prices_per_hour={"a": 1.0, "b": 0.5})
    assert target.time_s(plan.chosen) == pytest.approx(3600 * plan.chosen.forecast.step_s)
    assert target.cost(plan.chosen) == pytest.approx(1.5 * plan.chosen.forecast.step_s)
    assert TARGET.cost(plan.chosen) is None


def test_a_dtype_that_was_not_measured_is_refused(
    fleet: Fleet, anchor: ModelShape, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(PlanRequest(anchor, 2048, dtype="bfloat16"), fleet())
    assert str(caught.value) == snapshot


def test_hosts_that_are_much_faster_in_unlike_dtypes_compute_each_in_its_own(
    fleet: Fleet, anchor: ModelShape
) -> None:
    measured = fleet(gbit=10.0)
    in_bfloat16 = {"a": 0.5, "b": 8.0}
    others = tuple(
        replace(
            each,
            dtype="bfloat16",
            forward_s=each.forward_s * in_bfloat16[each.host],
            head_s=each.head_s * in_bfloat16[each.host],
            backward_s=each.backward_s * in_bfloat16[each.host],
        )
        for each in measured.step_costs
    )

    plan = make_plan(
        PlanRequest(anchor, 16_384), replace(measured, step_costs=(*measured.step_costs, *others))
    )

    assert plan.chosen.dtype == "by host"
    assert {host: cost.dtype for host, cost in plan.costs.items()} == {
        "a": "bfloat16",
        "b": "float32",
    }
    assert {host: each.dtype for host, each in plan.single_host.items()} == {
        "a": "bfloat16",
        "b": "float32",
    }
    fastest_in_one = max(
        each.tokens_per_second for each in plan.candidates if each.dtype != "by host"
    )
    assert plan.chosen.tokens_per_second > 1.1 * fastest_in_one


def test_a_link_that_was_not_measured_is_named(fleet: Fleet, anchor: ModelShape) -> None:
    known = fleet()
    with raises_fault("link-unmeasured"):
        make_plan(PlanRequest(anchor, 2048), replace(known, links=known.links[:1]))


def test_collectives_say_what_part_of_the_wire_is_reached(fleet: Fleet) -> None:
    known = fleet()
    rate = known.links[0].goodput_bytes_per_s
    reduces = tuple(
        Collective("all_reduce", "gloo", 2, size, time_s, 0.0, busbw, busbw / rate)
        for size, time_s, busbw in ((1000, 0.0015, 7e5), (8_000_000, 0.07, 0.9 * rate))
    )
    network = network_of(replace(known, collectives=reduces), ["a", "b"])
    assert network.ports["a"].out_bytes_per_s == pytest.approx(0.9 * rate)
    assert network.latency_s == pytest.approx(0.00075)


def test_a_link_that_carried_nothing_is_named_although_collectives_were_measured(
    fleet: Fleet,
) -> None:
    measured = fleet()
    dead = tuple(replace(link, both_ways_bytes_per_s=0.0) for link in measured.links)
    timed = (Collective("all_reduce", "gloo", 2, 64_000_000, 0.5, 1e8, 1e8, 0.9),)

    with raises_fault("link-idle"):
        network_of(replace(measured, links=dead, collectives=timed), measured.ranks)


def test_a_ring_takes_longer_to_begin_the_more_ranks_there_are(fleet: Fleet) -> None:
    known = fleet(slower={"a": 1.0, "b": 1.0, "c": 1.0})
    small = Collective("all_reduce", "gloo", 3, 1000, 0.004, 0.0, 7e5, 0.01)
    network = network_of(replace(known, collectives=(small,)), ["a", "b", "c"])
    # From rank to rank four times.
    assert network.latency_s == pytest.approx(0.001)


def test_a_sum_over_many_ranks_begins_later_than_over_two() -> None:
    def comm_s(ranks: int, latency_s: float) -> float:
        work = RankWork("", 0.0, 0.1, 0.1, 0.0, 0.0, 0.0, owned_fraction=1 / ranks, table_rows=0.0)
        works = [replace(work, host=str(rank)) for rank in range(ranks)]
        head = StepTraffic(head_numbers=1e6, matrix_numbers=0, embedding_row_numbers=0, layers=1)
        ports = {str(rank): PortRate(1e12, 1e12) for rank in range(ranks)}
        return simulate_step(works, head, Network(ports, latency_s)).step_s - 0.2

    # All ranks wait for each other: 2(N-1) messages one after the other.
    assert comm_s(2, 0.01) == pytest.approx(comm_s(2, 0.0) + 2 * 0.01, rel=0.05)
    assert comm_s(9, 0.01) == pytest.approx(comm_s(9, 0.0) + 16 * 0.01, rel=0.05)


def test_a_host_by_itself_is_as_fast_between_its_ranks_as_was_measured(
    fleet: Fleet, anchor: ModelShape
) -> None:
    known = fleet(slower={"a": 1.0})
    large = Collective("all_reduce", "gloo", 2, 64_000_000, 0.05, 1.3e9, 1.3e9, None)
    small = Collective("all_reduce", "gloo", 2, 1000, 0.0004, 2e6, 2e6, None)
    network = network_of(replace(known, collectives=(small, large)), ["a"])
    assert network.local_bytes_per_s == 1.3e9
    assert network.latency_s == pytest.approx(0.0002)
    # Of a fleet the collectives cross the network, and say nothing of one host.
    alone = network_of(replace(fleet(), collectives=(replace(small, time_s=0.2),)), ["a"])
    assert alone.latency_s < 0.001


def test_without_overlap_plain_ddp_comes_out_as_it_was_measured() -> None:
    # nanochat over two hosts at 1 Gbit/s, float32: 1.07 s for 1,024 tokens, 0.23 s of optimizer,
    # about 200 MB a step after the last backward pass; measured 555 tokens/s.
    works = [
        RankWork(
            host=host,
            early_s=1.07,
            forward_s=0.0,
            head_s=0.0,
            backward_s=0.0,
            muon_s=0.0,
            adamw_s=0.23,
            owned_fraction=0.5,
            table_rows=0.0,
            cpu_s_per_byte=GLOO_CPU_S_PER_BYTE,
        )
        for host in "ab"
    ]
    dense = StepTraffic(head_numbers=50e6, matrix_numbers=0, embedding_row_numbers=0, layers=1)
    wire = Network({host: PortRate(118.8e6, 118.8e6) for host in "ab"}, 0.0015)
    step = simulate_step(works, dense, wire)
    assert step.exposed_comm_s == pytest.approx(step.in_flight_s)
    assert 2048 / step.step_s == pytest.approx(555, rel=0.3)

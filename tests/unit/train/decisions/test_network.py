from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.compute_cost import RankSpeed, estimated_cost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.work import Network, PortRate, compression_of
from yoked.errors import UsageError
from yoked.train.comm.communicator import Communicator
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.network import (
    PlannedStrategy,
    StepRequest,
    decide,
    decide_sync_and_head,
    measure_rate,
)

D4 = ModelShape.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)
GBIT = 118e6
LATENCY_S = 2e-4
REPLICATED, VOCAB_PARALLEL = (
    Decision("lm_head", value, "") for value in ("replicated", "vocab-parallel")
)


def request(
    rows: Sequence[int] = (16, 16),
    *,
    flops: Sequence[float] = (1e11, 1e11),
    own_cores: Sequence[float] = (),
    hosts: Sequence[str] = ("i9", "laptop"),
    threads: int = 1,
    device: str = "cpu",
    memory_bytes: float = 1e11,
    lm_head: Decision | None = REPLICATED,
    sync: Decision | None = None,
    planned: PlannedStrategy | None = None,
) -> StepRequest:
    ranks = [
        estimated_cost(
            D4,
            host=host,
            device=device,
            dtype="float32",
            threads=threads,
            speed=RankSpeed(speed, cores),
            device_batch_size=2,
        )
        for host, speed, cores in zip(hosts, flops, own_cores or [1.0] * len(hosts), strict=True)
    ]
    memory = [memory_bytes] * len(ranks)
    return StepRequest(D4, ranks, rows, flops, 2, memory, sync, lm_head, planned)


def network(rate: float | None, hosts: Sequence[str] = ("i9", "laptop")) -> Network:
    ports = {} if rate is None else dict.fromkeys(hosts, PortRate(rate, rate))
    return Network(ports, LATENCY_S)


def sync_of(rate: float, *args: Any, **about: Any) -> Decision:
    return decide(request(*args, **about), network(rate))[0]


def head_of(rate: float | None, rows: Sequence[int], **about: Any) -> Decision:
    exact = Decision("sync", "exact", "")
    asked = request(rows, **{"lm_head": None, "sync": exact} | about)
    return decide(asked, network(rate, [cost.host for cost in asked.ranks]))[1]


# --- the payload dtype


def test_exact_sync_is_kept_where_the_network_hides_behind_the_computation():
    choice = sync_of(GBIT)

    assert choice.value == "exact"
    assert "118 MB/s" in choice.reason


def test_a_slow_network_gets_the_smallest_payload_and_the_lm_head_a_step_late():
    choice = sync_of(GBIT / 30)

    assert choice.value == "late-head:int8"
    step_s = [choice.measured[f"{way}_step_s"] for way in ("late_head_int8", "int8", "exact")]
    assert step_s == sorted(step_s)
    assert "exact" in choice.reason


def test_a_slow_network_gets_the_smallest_payload_alone_where_a_delay_was_not_measured():
    choice = sync_of(GBIT / 30, (64, 64))

    assert choice.value == "int8"
    assert choice.measured["int8_step_s"] < choice.measured["exact_step_s"]
    assert not any("late" in name for name in choice.measured)


@pytest.mark.parametrize("rows", [2, 16, 64])
def test_a_slower_network_never_chooses_a_larger_payload(rows):
    order = ["exact", "bf16", "int8"]

    chosen = [sync_of(GBIT / part, (rows, rows)).value for part in (0.1, 1, 2, 4, 16)]

    assert set(chosen) <= {*order, "late-head", "late-head:bf16", "late-head:int8"}
    payloads = [order.index(compression_of(sync)) for sync in chosen]
    assert payloads == sorted(payloads)


def test_sending_slows_a_host_with_many_threads_less():
    one, eight = (sync_of(GBIT, threads=threads).measured for threads in (1, 8))
    gpu = sync_of(GBIT, device="cuda").measured

    assert one["exact_step_s"] > eight["exact_step_s"] > gpu["exact_step_s"]


def test_a_host_without_rows_is_no_obstacle():
    found = sync_of(GBIT, (4, 0), flops=(1e11, 1e9))

    assert found.value in ("exact", "bf16", "int8")


def test_between_ranks_of_one_host_and_gpus_on_nccl_sync_is_exact():
    assert decide(request(hosts=("i9", "i9")), network(None))[0].value == "exact"
    gpus = replace(request(device="cuda"), lm_head=None)

    sync, lm_head = decide(gpus, network(None), nccl=True)

    assert (sync.value, lm_head.value) == ("exact", "replicated")
    assert "NCCL" in sync.reason


# --- who has the lm_head


def test_it_is_vocab_parallel_beside_a_host_with_half_a_core_that_also_sends_with_it() -> None:
    speeds = {"flops": (2.4e11, 1.24e11)}

    assert head_of(GBIT, (21, 11), **speeds).value == "replicated"
    assert head_of(GBIT, (21, 11), own_cores=(1.0, 0.5), **speeds).value == "vocab-parallel"


def test_it_is_vocab_parallel_where_its_gradient_would_hold_a_step_up():
    choice = head_of(GBIT, (2, 2), flops=(3e11, 3e11))

    assert choice.value == "vocab-parallel"
    step_s = choice.measured
    assert step_s["vocab_parallel_step_s"] < 0.9 * step_s["replicated_step_s"]
    assert "replicated" in choice.reason


def test_a_large_step_that_hides_its_gradient_is_replicated():
    choice = head_of(GBIT, (64, 64))

    assert choice.value == "replicated"
    assert "vocab-parallel" in choice.reason


def test_what_does_not_fit_into_memory_is_not_chosen_and_the_reason_says_so(
    snapshot: SnapshotAssertion,
):
    fast = {"flops": (3e11, 3e11)}

    assert head_of(GBIT / 10, (8, 8), **fast).value == "vocab-parallel"
    small = head_of(GBIT / 10, (8, 8), memory_bytes=1e9, **fast)

    assert small.value == "replicated"
    assert small.reason == snapshot


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"hosts": ["i9"], "flops": [1e11]}, "there is one rank"),
        ({"device": "mps"}, "not all ranks compute on a CPU"),
    ],
)
def test_what_cannot_be_is_replicated_and_refused_where_it_is_asked_for(
    about, why, snapshot: SnapshotAssertion
):
    rows = [2] * len(about.get("hosts", "ab"))

    assert head_of(GBIT, rows, **about).reason == why
    with pytest.raises(UsageError) as refused:
        head_of(GBIT, rows, lm_head=VOCAB_PARALLEL, **about)
    assert str(refused.value) == snapshot
    assert str(refused.value) == snapshot


def test_what_was_asked_for_is_kept():
    exact = Decision("sync", "int8", "as asked for with --sync")

    found = decide(request((2, 2), sync=exact, lm_head=REPLICATED), network(GBIT))

    assert found == (exact, REPLICATED)


def test_both_are_decided_together():
    # With a replicated lm_head this network wants int8.
    alone = sync_of(GBIT / 2, (2, 2), flops=(3e11, 3e11))
    sync, lm_head = decide(request((2, 2), flops=(3e11, 3e11), lm_head=None), network(GBIT / 2))

    assert lm_head.value == "vocab-parallel"
    order = ["exact", "bf16", "int8"]
    assert order.index(sync.value) <= order.index(alone.value)


# --- ranks


def test_the_network_is_measured_and_all_ranks_are_told_one_decision(
    on_ranks: Callable[..., list[Any]],
):
    asked = replace(request((4, 4)), lm_head=None)

    choices = on_ranks(2, lambda comm: decide_sync_and_head(comm, asked))
    measured = on_ranks(2, measure_rate)

    assert choices[0] == choices[1]
    assert all(rate > 0 and 0 < latency_s < math.inf for rate, latency_s in measured)


def test_a_vocab_parallel_lm_head_starts_with_parts_that_even_out_whole_rows(
    on_ranks: Callable[..., list[Any]],
) -> None:
    exact = Decision("sync", "exact", "")
    asked = request((3, 1), flops=(2e11, 1e11), sync=exact, lm_head=VOCAB_PARALLEL)

    one, other = on_ranks(2, lambda comm: decide_sync_and_head(comm, asked))

    parts = one.head_rows
    assert one == other
    assert parts is not None
    assert sum(parts) == pytest.approx(4)
    layers_s = [cost.forward_s + cost.backward_s for cost in asked.ranks]
    heads_s = [cost.head_s for cost in asked.ranks]
    took_s = [3 * layers_s[0] + parts[0] * heads_s[0], layers_s[1] + parts[1] * heads_s[1]]
    assert took_s[0] == pytest.approx(took_s[1])


def test_a_replicated_lm_head_has_no_parts() -> None:
    exact = Decision("sync", "exact", "")
    asked = request((3, 1), flops=(2e11, 1e11), sync=exact)

    assert decide_sync_and_head(Communicator(), asked).head_rows is None


PLAN = PlannedStrategy("int8", "vocab-parallel", "float32", GBIT)


def test_the_plan_decides_where_the_fleet_was_probed(snapshot: SnapshotAssertion) -> None:
    asked = request(lm_head=None, planned=PLAN)

    sync, head = decide(asked, network(0.8 * GBIT))

    assert (sync.value, head.value) == ("int8", "vocab-parallel")
    assert sync.reason == snapshot


@pytest.mark.parametrize(
    "change",
    [
        {"planned": replace(PLAN, dtype="bfloat16")},
        {"planned": replace(PLAN, bytes_per_s=GBIT / 10)},
        {"memory_bytes": 2e8},
    ],
)
def test_a_plan_for_another_dtype_network_or_memory_decides_nothing(change: dict[str, Any]) -> None:
    without = decide(request(lm_head=None, **{**change, "planned": None}), network(GBIT))

    assert decide(request(lm_head=None, **{"planned": PLAN, **change}), network(GBIT)) == without


def test_what_is_asked_for_comes_before_the_plan() -> None:
    exact = Decision("sync", "exact", "as asked for with --sync")

    sync, head = decide(request(lm_head=None, sync=exact, planned=PLAN), network(GBIT))

    assert sync == exact
    assert head.value == "vocab-parallel"

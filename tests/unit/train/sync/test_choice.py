from __future__ import annotations

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.train.choose import Choice
from yoked.train.sync.choice import RankPlace, choose_sync, judge, measure_network

D4 = ModelShape.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)
GBIT = 118e6
REPLICATED, VOCAB_PARALLEL = (
    Choice("lm_head", value, "") for value in ("replicated", "vocab-parallel")
)


def verdict(
    rate: float, rows: int = 16, hosts: tuple[str, ...] = ("i9", "laptop"), threads: int = 1
) -> Choice:
    ranks = [RankPlace(host, rows, 1e11, threads) for host in hosts]
    return judge(rate, 2e-4, ranks, D4, 2, lm_head=REPLICATED)


def test_exact_sync_is_kept_where_the_wire_hides_behind_the_computation():
    choice = verdict(GBIT)

    assert choice.value == "exact"
    assert "118 MB/s" in choice.reason


def test_a_slow_wire_gets_the_smallest_payload():
    choice = verdict(GBIT / 30)

    assert choice.value == "int8"
    assert choice.measured["int8_step_s"] < choice.measured["exact_step_s"]
    assert "exact" in choice.reason


@pytest.mark.parametrize("rows", [2, 16, 64])
def test_a_slower_wire_never_chooses_a_larger_payload(rows):
    order = ["exact", "bf16", "int8"]

    chosen = [order.index(verdict(GBIT / part, rows).value) for part in (0.1, 1, 2, 4, 8, 16)]

    assert chosen == sorted(chosen)


def test_sending_slows_a_host_with_many_threads_less():
    one, eight, gpu = (verdict(GBIT, threads=threads).measured for threads in (1, 8, 0))

    assert one["exact_step_s"] > eight["exact_step_s"] > gpu["exact_step_s"]


def test_a_host_without_rows_is_no_obstacle():
    ranks = [RankPlace("i9", 4, 1e11, 1), RankPlace("old", 0, 1e9, 1)]

    assert judge(GBIT, 2e-4, ranks, D4, 2, lm_head=REPLICATED).value in ("exact", "bf16", "int8")


def test_the_wire_is_measured_and_all_ranks_choose_alike(on_ranks):
    ranks = [RankPlace("i9", 4, 1e11, 1), RankPlace("laptop", 4, 1e11, 1)]

    choices = on_ranks(2, lambda comm: choose_sync(comm, ranks, D4, 2, lm_head=REPLICATED))
    measured = on_ranks(2, measure_network)

    assert choices[0] == choices[1]
    assert all(rate > 0 and latency_s > 0 for rate, latency_s in measured)


def test_what_a_vocab_parallel_lm_head_does_not_send_leaves_room_for_exact_sync():
    ranks = [RankPlace(host, 2, 3e11, 1) for host in ("i9", "laptop")]
    whole, vocab_parallel = (
        judge(GBIT, 2e-4, ranks, D4, 2, lm_head=each).measured
        for each in (REPLICATED, VOCAB_PARALLEL)
    )

    assert vocab_parallel["exact_step_s"] < 0.9 * whole["exact_step_s"]

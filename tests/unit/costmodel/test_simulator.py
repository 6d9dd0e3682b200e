from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.costmodel.messages import ring_bytes
from yoked.costmodel.simulator import simulate_step, step_timeline
from yoked.costmodel.work import Delays, Network, PortRate, RankWork, StepTraffic

NOTHING = StepTraffic(
    head_numbers=0, matrix_numbers=0, embedding_row_numbers=0, layers=1, head_chunks=1, buckets=1
)
HEAD, BOTH = Delays(head=True, matrices=False), Delays(head=True, matrices=True)


def rank(host: str = "a", **given: Any) -> RankWork:
    """A rank that does nothing but what is given."""
    parts = ("early_s", "forward_s", "head_s", "backward_s", "muon_s", "adamw_s")
    zero = dict.fromkeys((*parts, "owned_fraction", "table_rows"), 0.0)
    return RankWork(host=host, **{**zero, **given})


def network(rate: float, *hosts: str, latency_s: float = 0.0) -> Network:
    return Network({host: PortRate(rate, rate) for host in hosts or ("a", "b")}, latency_s)


def test_a_rank_alone_takes_the_sum_of_its_parts() -> None:
    work = rank(
        early_s=1, forward_s=2, head_s=3, backward_s=4, muon_s=5, adamw_s=6, owned_fraction=1
    )
    step = simulate_step([work], replace(NOTHING, head_numbers=1e9), Network({}, 1.0))
    assert (step.step_s, step.in_flight_s, step.sent_bytes) == (21, 0, 0)


def test_the_lm_head_travels_behind_the_backward_pass() -> None:
    works = [rank(host, forward_s=1, backward_s=1, adamw_s=1, owned_fraction=0.5) for host in "ab"]
    traffic = replace(NOTHING, head_numbers=100)
    step = simulate_step(works, traffic, network(100.0, latency_s=0.5))
    # 400 bytes at 100 bytes/s leave at 1.5 s and arrive at 5.5; the backward pass ends at 2.
    assert step.step_s == pytest.approx(6.5)
    assert step.in_flight_s == pytest.approx(4.5)
    assert step.exposed_comm_s == pytest.approx(3.5)
    assert step.hidden_comm_s == pytest.approx(1.0)
    assert step.compute_s == pytest.approx(3.0)
    assert step.sent_bytes == 400


@pytest.mark.parametrize(
    ("rate", "exact_s", "head_s", "late_s"),
    # Each sends 400 bytes of the lm_head, 200 of gradients and 200 of new matrices. At 100 bytes/s
    # these take 8 s, and late ones leave the wire idle for none of it. The lm_head's alone, the
    # matrices' gradients are waited for from the end of the backward pass on.
    [(1000.0, 5.2, 5.2, 5.0), (200.0, 7.0, 6.0, 5.0), (100.0, 11.0, 9.0, 8.0)],
)
def test_late_gradients_are_not_waited_for_where_a_step_s_bytes_fit_into_its_time(
    rate: float, exact_s: float, head_s: float, late_s: float
) -> None:
    works = [
        rank(host, forward_s=1, head_s=1, backward_s=1, muon_s=1, adamw_s=1, owned_fraction=0.5)
        for host in "ab"
    ]
    traffic = replace(NOTHING, head_numbers=100, matrix_numbers=100)
    found = [
        simulate_step(works, each, network(rate)).step_s
        for each in (traffic, replace(traffic, late=HEAD), replace(traffic, late=BOTH))
    ]
    assert found == pytest.approx([exact_s, head_s, late_s])


def test_of_late_gradients_the_rows_of_the_last_micro_batch_alone_are_waited_for() -> None:
    works = [
        rank(
            host, early_s=4, deferred_backward_s=(2, 1), forward_s=1, owned_fraction=0.5,
            table_rows=100, early_rows=100, deferred_rows=(100, 100),
        )
        for host in "ab"
    ]  # fmt: skip
    traffic = replace(NOTHING, embedding_row_numbers=0.25, head_numbers=50, late=BOTH)
    # 100 bytes of each part and 200 of the lm_head, which has the wire while the first is computed.
    found = simulate_step(works, traffic, network(100.0))
    assert (found.step_s, found.exposed_comm_s) == (pytest.approx(9), pytest.approx(1))


def test_a_timeline_has_what_is_computed_and_what_is_on_its_way() -> None:
    works = [
        rank(host, forward_s=1, head_s=1, backward_s=1, muon_s=1, adamw_s=1, owned_fraction=0.5)
        for host in "ab"
    ]
    traffic = replace(NOTHING, head_numbers=100, matrix_numbers=100, late=BOTH)
    computed, sent = step_timeline(works, traffic, network(200.0))
    names = ["forward", "Muon", "lm_head", "backward", "AdamW"]
    # One after the other, and the new matrices as they are made.
    assert list(dict.fromkeys(each.what for each in computed)) == names
    assert computed[0].begins_s == pytest.approx(0)
    for before, after in pairwise(computed):
        assert before.ends_s == pytest.approx(after.begins_s)
    assert computed[-1].ends_s == pytest.approx(5)
    by_name = {name: [each for each in sent if each.what == name] for name in ("layers", "head")}
    # 200 bytes leave when backward is through, and 400 behind them, until 2 s into the next step.
    assert [each.ends_s for each in by_name["layers"]][-1] == pytest.approx(5)
    assert by_name["head"][0].begins_s == pytest.approx(0)
    assert by_name["head"][-1].ends_s == pytest.approx(2)


@pytest.mark.parametrize(("adamw_s", "step_s", "exposed_s"), [(3, 8, 2), (1, 7, 3)])
def test_new_matrices_arrive_while_the_rest_of_the_optimizer_works(
    adamw_s: float, step_s: float, exposed_s: float
) -> None:
    works = [
        rank(host, forward_s=1, backward_s=1, muon_s=1, adamw_s=adamw_s, owned_fraction=0.5)
        for host in "ab"
    ]
    # Half of 400 bytes each way, twice: gradients to their owners, new matrices back.
    step = simulate_step(works, replace(NOTHING, matrix_numbers=100), network(100.0))
    assert step.step_s == pytest.approx(step_s)
    assert step.exposed_comm_s == pytest.approx(exposed_s)
    assert step.in_flight_s == pytest.approx(4)


def test_who_owns_all_matrices_does_not_wait_until_they_have_left() -> None:
    works = [
        rank("fast", forward_s=4, muon_s=1, owned_fraction=1),
        rank("slow", forward_s=1, backward_s=1, owned_fraction=0),
    ]
    traffic = replace(NOTHING, matrix_numbers=100)
    step = simulate_step(works, traffic, network(100.0, "fast", "slow"))
    # The slow one's 2 s, its gradients' 4 s, Muon, and 4 s of new matrices: these arrive while the
    # owner computes the next step.
    assert step.step_s == pytest.approx(2 + 4 + 1 + 4)
    assert step.hosts["fast"].compute_s == pytest.approx(5)


def test_a_gradient_leaves_when_its_sender_has_it() -> None:
    works = [
        rank("early", backward_s=1, muon_s=1, owned_fraction=0.5),
        rank("late", backward_s=9, muon_s=1, owned_fraction=0.5),
    ]
    # 200 bytes each way for 2 s: the early one's have long arrived when the late one has computed.
    step = simulate_step(
        works, replace(NOTHING, matrix_numbers=100), network(100.0, "early", "late")
    )
    assert step.hosts["late"].exposed_comm_s == pytest.approx(2)
    # And the late one's new matrices leave behind its gradients.
    assert step.hosts["early"].exposed_comm_s == pytest.approx(2 + 1)


def test_a_fast_host_waits_for_a_slow_one_and_says_so() -> None:
    works = [rank("a", forward_s=1, owned_fraction=0.5), rank("b", forward_s=4, owned_fraction=0.5)]
    step = simulate_step(works, replace(NOTHING, head_numbers=1), network(1e9))
    assert step.hosts["a"].wait_s == pytest.approx(3)
    assert step.hosts["b"].wait_s == pytest.approx(0)
    assert step.exposed_comm_s < 1e-6


def test_what_moving_bytes_costs_the_cores_lengthens_the_computation() -> None:
    works = [rank(host, backward_s=10, owned_fraction=0.5, cpu_s_per_byte=1e-3) for host in "ab"]
    step = simulate_step(works, replace(NOTHING, head_numbers=100), network(100.0))
    # 400 bytes go and 400 come, a millisecond each.
    assert step.step_s == pytest.approx(10.8)


def test_rows_of_earlier_micro_batches_cross_the_wire_behind_the_last_one() -> None:
    traffic = replace(NOTHING, embedding_row_numbers=1.0)
    at_once = [
        rank(host, early_s=5, forward_s=5, owned_fraction=0.5, table_rows=100) for host in "ab"
    ]
    early = [replace(each, table_rows=50, early_rows=50) for each in at_once]

    # 4 bytes a row at 100 bytes a second.
    assert simulate_step(at_once, traffic, network(100.0)).step_s == pytest.approx(14)
    assert simulate_step(early, traffic, network(100.0)).step_s == pytest.approx(12)


def test_deferred_backward_passes_hide_the_lm_head() -> None:
    traffic = replace(NOTHING, head_numbers=100)
    one = {"forward_s": 1.0, "head_s": 0.0, "backward_s": 1.0, "owned_fraction": 0.5}
    last_only = [rank(host, early_s=4, **one) for host in "ab"]
    all_wait = [
        rank(host, deferred_forward_s=2, deferred_backward_s=(2, 0), **one) for host in "ab"
    ]

    # 400 bytes at 100 bytes a second leave when the last forward pass is done.
    assert simulate_step(last_only, traffic, network(100.0)).step_s == pytest.approx(9)
    assert simulate_step(all_wait, traffic, network(100.0)).step_s == pytest.approx(7)


def test_rows_of_deferred_micro_batches_leave_before_the_last_backward_pass() -> None:
    traffic = replace(NOTHING, embedding_row_numbers=1.0)
    one = {
        "forward_s": 1,
        "backward_s": 3,
        "deferred_backward_s": (0.5, 0.5),
        "owned_fraction": 0.5,
    }
    at_once = [rank(host, table_rows=150, **one) for host in "ab"]
    parted = [rank(host, table_rows=50, deferred_rows=(0, 100), **one) for host in "ab"]
    earlier = [rank(host, table_rows=50, deferred_rows=(50, 50), **one) for host in "ab"]

    assert simulate_step(at_once, traffic, network(100.0)).step_s == pytest.approx(5 + 6)
    assert simulate_step(parted, traffic, network(100.0)).step_s == pytest.approx(2 + 4 + 2)
    assert simulate_step(earlier, traffic, network(100.0)).step_s == pytest.approx(1.5 + 4 + 2)


def test_a_divided_lm_head_exchanges_hidden_states_behind_its_own_products() -> None:
    # 10 tokens on each rank, 10 bytes a hidden state: a second each way, and sums that take 1.6.
    traffic = replace(NOTHING, lm_head="vocab-parallel", token_bytes=10.0)
    works = [
        rank(host, forward_s=1, head_s=6, backward_s=2, owned_fraction=0.5, tokens=10)
        for host in "ab"
    ]
    step = simulate_step(works, traffic, network(100.0))
    # Logits of its own tokens 2 s, of the others' 2; its weight's gradient 2.
    assert step.step_s == pytest.approx(1 + 4 + 1.6 + 2 + 2)
    assert step.exposed_comm_s == pytest.approx(1.6)
    assert step.sent_bytes == pytest.approx(100 + 160 + 100)


def test_a_rank_without_tokens_works_on_its_part_of_a_divided_lm_head() -> None:
    traffic = replace(NOTHING, lm_head="vocab-parallel", token_bytes=1.0)
    works = [
        rank("a", forward_s=1, head_s=3, owned_fraction=0.5, tokens=20),
        rank("b", head_s=6, owned_fraction=0.5, tokens=0),
    ]
    step = simulate_step(works, traffic, network(1e9))
    assert step.step_s == pytest.approx(1 + 6)


def test_codecs_count_where_they_are_used() -> None:
    works = [rank(host, owned_fraction=0.5, encode_s=1.0, decode_s=0.1) for host in "ab"]
    step = simulate_step(works, replace(NOTHING, head_numbers=10, dense_bytes=1.0), network(1e9))
    # Ten numbers are encoded; both ranks' are decoded.
    assert step.compute_s == pytest.approx(12)


def test_the_narrowest_direction_of_any_port_sets_the_pace() -> None:
    works = [rank(host, owned_fraction=0.5) for host in "ab"]
    uneven = Network({"a": PortRate(1000, 1000), "b": PortRate(10, 1000)}, 0.0)
    step = simulate_step(works, replace(NOTHING, head_numbers=100), uneven)
    assert step.step_s == pytest.approx(40)


def test_ranks_of_one_host_use_no_port() -> None:
    works = [rank("a", owned_fraction=0.5), rank("a", owned_fraction=0.5)]
    traffic = replace(NOTHING, head_numbers=100, matrix_numbers=100)
    step = simulate_step(works, traffic, Network({}, 0.0, local_bytes_per_s=800))
    assert step.sent_bytes == 0
    assert step.step_s == pytest.approx(800 / 800 + 400 / 800 + 400 / 800)


def test_two_ranks_a_host_send_one_share_of_the_ring_through_its_port() -> None:
    works = [rank(host, owned_fraction=0.25) for host in "aabb"]
    step = simulate_step(works, replace(NOTHING, head_numbers=100), network(100.0))
    assert step.sent_bytes == ring_bytes(400, 4)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[RankWork], StepTraffic, float, float]:
    count = draw(st.integers(2, 4))
    seconds = st.floats(0, 2)
    works = [
        RankWork(
            host=f"h{number}",
            early_s=draw(seconds),
            forward_s=draw(seconds),
            head_s=draw(seconds),
            backward_s=draw(seconds),
            muon_s=draw(seconds),
            adamw_s=draw(st.floats(0.01, 2)),
            owned_fraction=1 / count,
            table_rows=draw(st.floats(0, 1000)),
            early_rows=draw(st.sampled_from([0.0, 100.0, 1000.0])),
            deferred_forward_s=draw(seconds),
            deferred_backward_s=(draw(seconds), draw(seconds)),
            deferred_rows=draw(st.sampled_from([(0.0, 0.0), (100.0, 0.0), (200.0, 100.0)])),
            encode_s=draw(st.floats(0, 1e-6)),
            decode_s=draw(st.floats(0, 1e-6)),
        )
        for number in range(count)
    ]
    traffic = StepTraffic(
        head_numbers=draw(st.floats(0, 1e6)),
        matrix_numbers=draw(st.floats(0, 1e6)),
        embedding_row_numbers=draw(st.floats(0, 100)),
        layers=draw(st.integers(1, 4)),
        dense_bytes=draw(st.sampled_from([0.53, 1.0, 2.0, 4.0])),
    )
    return works, traffic, draw(st.floats(1e4, 1e9)), draw(st.floats(0, 0.1))


def test_a_message_without_bytes_is_in_flight_for_its_latency() -> None:
    works = [
        RankWork(
            host=host, early_s=0, forward_s=0, head_s=0, backward_s=0, muon_s=0, adamw_s=1,
            owned_fraction=0.5, table_rows=0,
        )
        for host in ("a", "b")
    ]  # fmt: skip
    traffic = StepTraffic(
        head_numbers=0, matrix_numbers=0, embedding_row_numbers=0, layers=1, dense_bytes=1
    )

    step = simulate_step(works, traffic, network(1e4, "a", "b", latency_s=0.25))

    assert step.in_flight_s >= step.hosts["a"].exposed_comm_s > 0


@settings(max_examples=25, deadline=None)
@given(fleets())
def test_a_step_is_what_each_host_computes_waits_and_stands_still(
    fleet: tuple[list[RankWork], StepTraffic, float, float],
) -> None:
    works, traffic, rate, latency_s = fleet
    hosts = [work.host for work in works]
    step = simulate_step(works, traffic, network(rate, *hosts, latency_s=latency_s))
    for work in works:
        host = step.hosts[work.host]
        assert host.compute_s + host.wait_s + host.exposed_comm_s == pytest.approx(step.step_s)
        assert host.compute_s >= work.alone_s - 1e-9
        assert 0 <= host.exposed_comm_s <= step.in_flight_s + 1e-9


@settings(max_examples=25, deadline=None)
@given(fleets(), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    fleet: tuple[list[RankWork], StepTraffic, float, float], times: float
) -> None:
    works, traffic, rate, latency_s = fleet
    hosts = [work.host for work in works]
    slow = simulate_step(works, traffic, network(rate, *hosts, latency_s=latency_s))
    fast = simulate_step(works, traffic, network(times * rate, *hosts, latency_s=latency_s))
    assert fast.step_s <= slow.step_s * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(fleets())
def test_a_rank_sends_its_part_of_the_ring_and_its_rows_to_all(
    fleet: tuple[list[RankWork], StepTraffic, float, float],
) -> None:
    works, traffic, rate, _ = fleet
    n = len(works)
    step = simulate_step(works, traffic, network(rate, *(work.host for work in works)))
    dense = ring_bytes(traffic.dense_bytes * (traffic.head_numbers + traffic.matrix_numbers), n)
    for work in works:
        own = work.early_rows + sum(work.deferred_rows) + work.table_rows
        rows = (n - 1) * own * traffic.embedding_row_numbers * traffic.row_bytes
        assert step.hosts[work.host].sent_bytes == pytest.approx(dense + rows)


def test_ranks_that_use_most_of_the_vocabulary_sum_whole_tables() -> None:
    works = [rank(host, forward_s=1, table_rows=90, early_rows=90) for host in "abcd"]
    traffic = replace(NOTHING, embedding_row_numbers=10, table_rows=100)
    # 180 rows to three others; instead 2 (N - 1) / N of 100 rows.
    step = simulate_step(works, traffic, network(1e6, *"abcd"))
    assert step.sent_bytes == pytest.approx(ring_bytes(100 * 10 * 4, 4))

    few = [rank(host, forward_s=1, table_rows=9) for host in "abcd"]
    step = simulate_step(few, traffic, network(1e6, *"abcd"))
    assert step.sent_bytes == pytest.approx(3 * 9 * 10 * 4)

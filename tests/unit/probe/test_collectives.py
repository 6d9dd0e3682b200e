"""Which sizes are measured, how often, and what their times mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.probe.collectives import (
    LONG_S,
    MAX_REPETITIONS,
    OPS,
    PAYLOADS_BYTES,
    bus_factor,
    element_count,
    is_skipped,
    iterations,
    repetitions,
    time_budget_s,
    with_bandwidth,
)


def timed(op: str, payload_bytes: int, time_s: float) -> dict[str, Any]:
    return {"op": op, "backend": "gloo", "payload_bytes": payload_bytes, "time_s": time_s}


def test_sizes_go_from_a_kilobyte_to_a_quarter_of_a_gigabyte() -> None:
    assert PAYLOADS_BYTES[0] == 1_000
    assert PAYLOADS_BYTES[-1] == 256_000_000
    assert 64_000_000 in PAYLOADS_BYTES
    assert list(PAYLOADS_BYTES) == sorted(set(PAYLOADS_BYTES))


def test_bus_bandwidth_is_what_each_wire_carries() -> None:
    times = [
        timed("all_reduce", 64_000_000, 0.5),
        timed("all_gather", 10**6, 0.1),
    ]

    reduced, gathered = with_bandwidth(times, 4, link_bytes_per_s=200e6)

    assert reduced.algbw_bytes_per_s == 128e6
    assert reduced.busbw_bytes_per_s == pytest.approx(192e6)
    assert reduced.fraction_of_wire == pytest.approx(0.96)
    assert gathered.busbw_bytes_per_s == pytest.approx(7.5e6)


def test_ranks_of_one_host_have_no_wire_to_compare_with() -> None:
    found = with_bandwidth([timed("all_reduce", 1_000, 0.001)], 2, None)

    assert found[0].fraction_of_wire is None


@given(payload=st.integers(1, 300_000_000), ranks=st.integers(2, 8))
@settings(max_examples=30)
def test_a_payload_divides_among_the_ranks_and_is_close_to_what_was_asked(
    payload: int, ranks: int
) -> None:
    numbers = element_count(payload, ranks)

    assert numbers % ranks == 0
    assert numbers >= ranks
    assert numbers == ranks or payload - 4 * ranks < 4 * numbers <= payload


@given(ranks=st.integers(2, 64))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks: int) -> None:
    parts = bus_factor("reduce_scatter", ranks) + bus_factor("all_gather", ranks)

    assert bus_factor("all_reduce", ranks) == pytest.approx(parts)


@given(first_s=st.floats(1e-6, 100), limit_s=st.floats(0.1, 60), left_s=st.floats(-5, 60))
@settings(max_examples=50)
def test_every_size_has_a_repetition_and_none_has_too_many(
    first_s: float, limit_s: float, left_s: float
) -> None:
    again = repetitions(first_s, limit_s, left_s)

    assert (again >= 1) or first_s >= LONG_S
    assert again <= MAX_REPETITIONS
    if again > 1:
        assert again * first_s * iterations(first_s) <= left_s * (1 + 1e-9)


def test_what_one_operation_leaves_the_next_ones_may_use() -> None:
    assert time_budget_s("all_reduce", 10.0) == pytest.approx(6.0)
    # all_reduce took a second instead.
    assert time_budget_s("all_gather", 9.0) == pytest.approx(4.5)
    assert time_budget_s(OPS[-1], 3.0) == 3.0


def test_a_size_is_left_out_only_when_it_is_long_and_there_is_no_time() -> None:
    assert is_skipped(expected_s=5.4, left_s=3.0)
    assert not is_skipped(expected_s=5.4, left_s=6.0)
    assert not is_skipped(expected_s=0.01, left_s=-1.0)

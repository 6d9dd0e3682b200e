"""Memory or arithmetic: decided by the model's intensity against the machine's balance."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.probe.made_up import SHAPE, compute, step_cost

from yoked.costmodel.model_shape import flops_per_token
from yoked.probe.roofline import moved_bytes, roofline


@given(tokens=st.integers(64, 8192))
def test_more_tokens_make_more_of_each_weight(tokens: int) -> None:
    def intensity(count: int) -> float:
        return count * flops_per_token(SHAPE) / moved_bytes(SHAPE, count, "float32")

    assert intensity(2 * tokens) > intensity(tokens)


def test_half_the_bytes_are_twice_the_intensity_of_what_is_not_fp32() -> None:
    narrow, wide = moved_bytes(SHAPE, 1024, "bfloat16"), moved_bytes(SHAPE, 1024, "float32")

    # The weights' gradients are fp32 in both.
    assert wide / 2 < narrow < wide


def test_slow_products_beside_fast_memory_are_held_by_arithmetic(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = roofline(step_cost("alpha"), compute("alpha"), ())

    assert verdict.side == "arithmetic"
    assert verdict.intensity > verdict.balance
    assert 0 < verdict.reached < 1
    assert verdict.suggestions == snapshot


def test_fast_products_beside_slow_memory_are_held_by_memory() -> None:
    fast = dataclasses.replace(compute("alpha", flops=4e12), copy_bytes_per_s=10e9)

    verdict = roofline(step_cost("alpha"), fast, ())

    assert verdict.side == "memory"
    assert any("--device-batch-size" in line for line in verdict.suggestions)


def test_a_faster_dtype_is_the_first_help_and_a_slower_one_is_none() -> None:
    here = compute("alpha")
    faster = compute("alpha", "bfloat16", flops=2 * here.flops_per_s)
    slower = compute("alpha", "bfloat16", flops=here.flops_per_s / 5)

    with_faster = roofline(step_cost("alpha"), here, (faster,))
    with_slower = roofline(step_cost("alpha"), here, (slower,))

    assert with_faster.suggestions[0].startswith("--dtype bfloat16")
    assert "2.0x" in with_faster.suggestions[0]
    assert not any("--dtype" in line for line in with_slower.suggestions)


def test_an_optimizer_that_takes_long_asks_for_larger_steps() -> None:
    slow = dataclasses.replace(step_cost("alpha"), adamw_s=1.0)

    verdict = roofline(slow, compute("alpha"), ())

    assert verdict.optimizer_share == pytest.approx(1.0 / 1.76)
    assert any("--total-batch-size" in line for line in verdict.suggestions)


def test_a_rank_reaches_a_part_of_what_all_ranks_of_its_host_multiply() -> None:
    one = roofline(step_cost("alpha"), compute("alpha"), ())
    four = dataclasses.replace(compute("alpha", flops=4 * 268e9), threads=4)

    assert roofline(step_cost("alpha"), four, ()).reached == pytest.approx(one.reached)

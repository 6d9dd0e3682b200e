from __future__ import annotations

from dataclasses import replace

import pytest

from yoked.plan.comm_cost import (
    GOOD_SCALING,
    MOST_ACCUMULATION,
    Training,
    all_reduce_cost,
    collectives_of_fsdp,
    enough_accumulation,
    fleet_sizes,
    fsdp_cost,
    levers,
)

GPT2_760M = Training(params=760e6, payload="bf16", hosts=2, efficiency=0.85, step_s=1.5)


@pytest.mark.parametrize(
    ("line_bit_per_s", "time_s"), [(1e9, 14.3), (2.5e9, 5.72), (10e9, 1.43), (400e9, 0.0358)]
)
def test_a_760m_model_in_bf16_takes_the_times_of_comm_cost_py(
    line_bit_per_s: float, time_s: float
) -> None:
    cost = all_reduce_cost(GPT2_760M, line_bit_per_s)
    assert cost.comm_s == pytest.approx(time_s, rel=2e-3)
    assert cost.sent_bytes == pytest.approx(1.52e9)


def test_more_hosts_send_towards_twice_the_gradients() -> None:
    sent = [replace(GPT2_760M, hosts=hosts).sent_bytes / 1.52e9 for hosts in (2, 4, 1000)]
    assert sent == pytest.approx([1.0, 1.5, 1.998])


def test_without_a_compute_time_no_ratio_is_made_up() -> None:
    training = replace(GPT2_760M, step_s=None)
    cost = all_reduce_cost(training, 1e9)
    assert (cost.comm_to_compute, cost.speedup, cost.step_s) == (None, None, None)
    assert "overlap" not in levers(training, 1e9)
    assert not any("accumulation" in name for name in levers(training, 1e9))


def test_enough_accumulation_is_the_least_that_computes_nine_tenths_of_the_time() -> None:
    times = enough_accumulation(GPT2_760M, 1e9)

    def scaling(accumulation: int) -> float:
        cost = all_reduce_cost(replace(GPT2_760M, accumulation=accumulation), 1e9)
        assert cost.speedup is not None
        return cost.speedup / GPT2_760M.hosts

    assert scaling(times - 1) < GOOD_SCALING <= scaling(times)


def test_a_fast_line_needs_no_accumulation() -> None:
    assert enough_accumulation(GPT2_760M, 400e9) == 1
    assert [name for name in levers(GPT2_760M, 400e9) if name == "accumulation 1"] == []


def test_a_step_of_next_to_no_time_asks_for_no_infinite_accumulation() -> None:
    odd = replace(GPT2_760M, params=1e99, step_s=1e-300)

    assert enough_accumulation(odd, 1e9) == MOST_ACCUMULATION
    assert all_reduce_cost(levers(odd, 1e9)["overlap"], 1e9).speedup is not None


def test_overlap_hides_no_more_than_the_backward_pass() -> None:
    slow = all_reduce_cost(replace(GPT2_760M, overlap=True), 1e9)
    fast = all_reduce_cost(replace(GPT2_760M, overlap=True), 400e9)
    assert slow.exposed_s == pytest.approx(slow.comm_s - 1.0)
    assert fast.exposed_s == 0.0
    assert fast.step_s == 1.5


def test_each_lever_shortens_the_time_per_micro_batch() -> None:
    found = levers(GPT2_760M, 1e9)
    plain, *others = [all_reduce_cost(way, 1e9).speedup for way in found.values()]
    assert plain is not None
    assert all(other is not None and other > plain for other in others)
    assert others[-1] == max(others, key=lambda speedup: speedup or 0.0)


def test_fsdp_sends_half_as_much_again_as_an_all_reduce() -> None:
    sent = collectives_of_fsdp(GPT2_760M)
    assert sum(sent.values()) == pytest.approx(1.5 * GPT2_760M.sent_bytes)
    assert fsdp_cost(GPT2_760M, 1e9).comm_s == pytest.approx(
        1.5 * all_reduce_cost(GPT2_760M, 1e9).comm_s
    )


def test_fsdp_sends_for_each_micro_batch_of_an_update() -> None:
    once, four = (fsdp_cost(replace(GPT2_760M, accumulation=k), 1e9) for k in (1, 4))
    assert four.sent_bytes == 4 * once.sent_bytes
    assert four.comm_to_compute == once.comm_to_compute


LORA_1B = Training(
    params=1.1e9, trainable=4.5e6, payload="fp32", hosts=2, efficiency=0.95, step_s=2.0
)


def test_frozen_parameters_send_no_gradients() -> None:
    everything = replace(LORA_1B, trainable=None)
    part = all_reduce_cost(LORA_1B, 1e8).comm_s / all_reduce_cost(everything, 1e8).comm_s
    assert LORA_1B.gradient_bytes == pytest.approx(18e6)
    assert part == pytest.approx(4.5e6 / 1.1e9)


def test_fsdp_gathers_frozen_parameters_all_the_same() -> None:
    sent = collectives_of_fsdp(LORA_1B)
    assert sent["all-gather, forward"] == sent["all-gather, backward"] == pytest.approx(2.2e9)
    assert sent["reduce-scatter"] == pytest.approx(9e6)


def test_overlap_has_less_to_hide_behind_where_parameters_are_frozen() -> None:
    """No time goes to the parameters' gradients: the backward pass is as long as the forward."""
    assert replace(LORA_1B, trainable=None).backward_fraction == pytest.approx(2 / 3)
    assert LORA_1B.backward_fraction == pytest.approx(1 / 2, abs=2e-3)


@pytest.mark.parametrize(
    ("hosts", "sizes"),
    [
        (2, [1, 2]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 12]),
        (64, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]),
    ],
)
def test_fleets_from_one_host_to_all_are_told(hosts: int, sizes: list[int]) -> None:
    assert fleet_sizes(hosts) == sizes

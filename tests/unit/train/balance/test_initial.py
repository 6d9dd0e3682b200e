from __future__ import annotations

from collections.abc import Sequence

import pytest

from yoked.costmodel.compute_cost import RankCost, RankSpeed, estimated_cost
from yoked.costmodel.model_shape import ModelShape
from yoked.train.balance.initial import initial_shares, level_alike
from yoked.train.config import TrainConfig

D4 = ModelShape.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)


def rank_cost(speed: float) -> RankCost:
    return estimated_cost(
        D4,
        host="",
        device="cpu",
        dtype="float32",
        threads=1,
        speed=RankSpeed(speed * 1e11),
        device_batch_size=2,
    )


def shares(hosts: str, last_rows: Sequence[int] = (), **flags: str) -> tuple[tuple, bool]:
    costs = [rank_cost(4.0), rank_cost(1.0)]
    found = initial_shares(TrainConfig(**flags), hosts.split(), 32, 2, last_rows, lambda: costs)
    return found.rows, found.live


def test_rows_move_between_hosts_unless_shares_are_fixed_or_it_is_switched_off() -> None:
    assert shares("desk laptop") == ((26, 6), True)
    assert shares("desk desk") == ((16, 16), False)
    assert shares("desk desk", balance="on") == ((26, 6), True)
    assert shares("desk laptop", balance="off") == ((16, 16), False)
    assert shares("desk laptop", shares="3:1") == ((24, 8), False)
    assert shares("desk laptop", shares="3:1", balance="on") == ((24, 8), True)
    assert shares("desk", balance="on") == ((32,), False)


def test_a_resumed_run_starts_with_the_rows_that_it_had_last() -> None:
    assert shares("desk laptop", (26, 6)) == ((26, 6), True)
    assert shares("desk laptop", (26, 6), shares="1:1") == ((16, 16), False)


@pytest.mark.parametrize("last_rows", [(10, 10, 12), (32,), (0, 0)])
def test_rows_that_cannot_be_those_of_these_ranks_are_not_taken_over(
    last_rows: Sequence[int],
) -> None:
    assert shares("desk laptop", last_rows) == ((26, 6), True)


def test_speeds_that_a_short_measurement_cannot_tell_apart_are_taken_for_equal() -> None:
    whole, half = RankSpeed(1.4, 1.0), RankSpeed(1.0, 0.5)
    assert level_alike([RankSpeed(1.25, 1.0), half]) == [RankSpeed(1.125, 0.75)] * 2
    assert level_alike([whole, half]) == [whole, half]


@pytest.mark.parametrize(("balance", "rows"), [("auto", (26, 6)), ("off", (16, 16))])
def test_a_run_goes_on_with_its_last_rows_unless_they_are_not_to_move(
    balance: str, rows: tuple[int, ...]
) -> None:
    def never() -> list[RankCost]:
        raise AssertionError("nothing is to be measured")

    hosts = ["i9", "laptop"]
    found = initial_shares(TrainConfig(balance=balance), hosts, 32, 2, (26, 6), never)

    assert found.rows == rows
    assert found.live == (balance == "auto")

from __future__ import annotations

from collections.abc import Sequence

import pytest

from yoked.train.balance.initial import initial_shares, level_alike
from yoked.train.config import TrainConfig


def shares(hosts: str, last_rows: Sequence[int] = (), **flags: str) -> tuple[tuple, bool]:
    found = initial_shares(TrainConfig(**flags), hosts.split(), last_rows, lambda: [4.0, 1.0])
    return found.weights, found.live


def test_rows_move_between_hosts_unless_shares_are_fixed_or_it_is_switched_off() -> None:
    assert shares("desk laptop") == ((4.0, 1.0), True)
    assert shares("desk desk") == ((1.0, 1.0), False)
    assert shares("desk desk", balance="on") == ((4.0, 1.0), True)
    assert shares("desk laptop", balance="off") == ((1.0, 1.0), False)
    assert shares("desk laptop", shares="3:1") == ((3.0, 1.0), False)
    assert shares("desk laptop", shares="3:1", balance="on") == ((3.0, 1.0), True)
    assert shares("desk", balance="on") == ((1.0,), False)


def test_a_resumed_run_starts_with_the_rows_that_it_had_last() -> None:
    assert shares("desk laptop", (26, 6)) == ((26.0, 6.0), True)
    assert shares("desk laptop", (26, 6), shares="1:1") == ((1.0, 1.0), False)


def test_speeds_that_a_short_measurement_cannot_tell_apart_are_taken_for_equal() -> None:
    assert level_alike([1.25, 1.0]) == [1.125, 1.125]
    assert level_alike([1.4, 1.0]) == [1.4, 1.0]


@pytest.mark.parametrize(("balance", "weights"), [("auto", (26, 6)), ("off", (1, 1))])
def test_a_run_goes_on_with_its_last_rows_unless_they_are_not_to_move(
    balance: str, weights: tuple[int, ...]
) -> None:
    def never() -> list[float]:
        raise AssertionError("nothing is to be measured")

    found = initial_shares(TrainConfig(balance=balance), ["i9", "laptop"], (26, 6), never)

    assert found.weights == weights
    assert found.live == (balance == "auto")

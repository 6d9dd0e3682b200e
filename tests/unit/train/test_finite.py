"""A loss or a weight that is not finite: which ranks are to blame, and that all raise alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from yoked.errors import LossNotFiniteError
from yoked.train.comm.communicator import Communicator
from yoked.train.finite import ITS_OWN, LOWER_RATE, require_finite_loss, require_finite_weights
from yoked.train.state import Replicated, RowSharded, TrainState
from yoked.train.trainer import StepStats

OnRanks = Callable[..., list[Any]]
GOOD = 3.0


def stats(nats: float) -> StepStats:
    return StepStats(nats, 1, 0.1, 0.0, 0.0, 0)


def after_losses(on_ranks: OnRanks, *nats: float) -> list[LossNotFiniteError | None]:
    """What each rank raises."""

    def act(comm: Communicator) -> LossNotFiniteError | None:
        try:
            require_finite_loss(comm, 4, [stats(each) for each in nats])
        except LossNotFiniteError as problem:
            return problem
        return None

    return on_ranks(len(nats), act)


def test_losses_that_are_numbers_raise_nothing(on_ranks: OnRanks) -> None:
    assert after_losses(on_ranks, GOOD, 1e300) == [None, None]


def test_a_loss_that_is_not_finite_on_one_rank_is_that_ranks(on_ranks: OnRanks) -> None:
    for problem in after_losses(on_ranks, GOOD, math.nan, GOOD):
        assert problem is not None
        assert problem.of_ranks == (1,)
        assert (
            problem.what == "the loss is not a finite number in step 5; that of the other ranks is"
        )
        assert problem.fix == ITS_OWN


def test_of_several_ranks_that_have_it_all_are_named(on_ranks: OnRanks) -> None:
    for problem in after_losses(on_ranks, GOOD, math.nan, math.inf):
        assert problem is not None
        assert problem.of_ranks == (1, 2)
        assert problem.what.startswith("on ranks 1 and 2 alone the loss is not")


@pytest.mark.parametrize("nats", [(math.nan, math.inf), (math.inf,)])
def test_one_that_all_ranks_have_is_the_learning_rates(
    on_ranks: OnRanks, nats: tuple[float, ...]
) -> None:
    for problem in after_losses(on_ranks, *nats):
        assert problem is not None
        assert problem.of_ranks == tuple(range(len(nats)))
        assert problem.what == "the loss is not a finite number in step 5"
        assert problem.fix == LOWER_RATE


def after_weights(
    on_ranks: OnRanks, *values: float, sharded: bool = False
) -> list[LossNotFiniteError | None]:
    """What each rank raises whose last weight is this."""
    rows = RowSharded((slice(0, 1), *(slice(1, 1) for _ in values[1:])))

    def act(comm: Communicator) -> LossNotFiniteError | None:
        weights: dict[str, Tensor] = {"wte": torch.ones(3), "lm_head": torch.ones(1, 3)}
        weights["lm_head"][0, 2] = values[comm.rank]
        state = TrainState(comm, torch.device("cpu"))
        state.register("wte", weights["wte"], Replicated())
        state.register("lm_head", weights["lm_head"], rows if sharded else Replicated())
        try:
            require_finite_weights(comm, state, weights.items(), done=4)
        except LossNotFiniteError as problem:
            return problem
        return None

    return on_ranks(len(values), act)


def test_finite_weights_raise_nothing(on_ranks: OnRanks) -> None:
    assert after_weights(on_ranks, 1.0, -1e30) == [None, None]


def test_a_weight_that_is_not_finite_on_one_rank_ends_all_and_is_that_ranks(
    on_ranks: OnRanks,
) -> None:
    for problem in after_weights(on_ranks, 1.0, 1.0, math.nan):
        assert problem is not None
        assert problem.of_ranks == (2,)
        assert problem.what == (
            "lm_head is not finite after step 4, so it was not saved; that of the other ranks is"
        )


def test_rows_that_one_rank_alone_keeps_say_nothing_against_it(on_ranks: OnRanks) -> None:
    for problem in after_weights(on_ranks, math.inf, 1.0, sharded=True):
        assert problem is not None
        assert problem.of_ranks == (0, 1)
        assert problem.fix == LOWER_RATE

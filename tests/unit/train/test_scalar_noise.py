"""The first step must not turn rounding into weights."""

from __future__ import annotations

import torch

from yoked.train.trainer import SCALAR_NOISE, zero_rounding_noise


def test_what_is_nothing_but_rounding_becomes_zero_and_the_rest_stays() -> None:
    gradients = torch.tensor([3e-11, -1.7e-10, 0.0, 2e-5, -4e-4, 2 * SCALAR_NOISE])

    zero_rounding_noise(gradients)

    assert gradients.tolist() == torch.tensor([0, 0, 0, 2e-5, -4e-4, 2 * SCALAR_NOISE]).tolist()


def test_a_gradient_that_is_not_a_number_stays_one() -> None:
    gradients = torch.tensor([float("nan"), float("inf")])

    zero_rounding_noise(gradients)

    assert gradients[0].isnan()
    assert gradients[1].isinf()

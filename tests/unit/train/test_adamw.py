from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from yoked.train.optim.adamw import adamw_update, coefficients

LR, BETAS, DECAY = 0.03, (0.8, 0.995), 0.01


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(parameter: Tensor, gradients: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW with decoupled decay in float64, written as in the paper."""
    p = parameter.double()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate((g.double() for g in gradients), start=1):
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g * g
        m_hat, v_hat = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        p = p - LR * DECAY * p
        p = p - LR * m_hat / (v_hat.sqrt() + 1e-10)
    return p, m, v


@pytest.mark.parametrize("shape", [(5, 7), (6,), (1,), (1, 24)])
def test_the_update_is_that_of_the_paper(passes, shape):
    parameter = draw(*shape, seed=9)
    gradients = [draw(*shape, seed=seed) for seed in range(20)]
    expected = reference(parameter, gradients)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)

    for step, gradient in enumerate(gradients, start=1):
        adamw_update(parameter, gradient, first, second, coefficients(step, LR, BETAS, DECAY))

    for ours, right in zip((parameter, first, second), expected, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=2e-5, atol=2e-6)


def test_row_gradients_mean_the_same_as_a_dense_gradient_with_zeros(passes):
    slot = torch.tensor([-1, 1, -1, 0, -1], dtype=torch.int32)
    rows = draw(2, 7)
    dense = torch.zeros(5, 7)
    dense[3], dense[1] = rows[0], rows[1]
    results = []
    for gradient, where in ((rows, slot), (dense, None)):
        p, m, v = draw(5, 7, seed=1), draw(5, 7, seed=2), draw(5, 7, seed=3).abs()
        adamw_update(p, gradient, m, v, coefficients(5, LR, BETAS, DECAY), where)
        results.append((p, m, v))

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_row_without_gradient_goes_on_moving_with_its_momentum(passes):
    p, m, v = draw(2, 7, seed=1), torch.ones(2, 7), torch.ones(2, 7)
    before = p.clone()
    slot = torch.tensor([-1, -1], dtype=torch.int32)

    adamw_update(p, torch.empty(0, 7), m, v, coefficients(3, LR, BETAS, 0.0), slot)

    step = LR / (1 - 0.8**3) * 0.8 / math.sqrt(0.995 / (1 - 0.995**3))
    torch.testing.assert_close(p, before - step)
    torch.testing.assert_close(m, torch.full((2, 7), 0.8))
    torch.testing.assert_close(v, torch.full((2, 7), 0.995))


def test_a_bfloat16_table_is_computed_in_float32_and_rounded_back(passes):
    p, m, v = (x.bfloat16() for x in (draw(4, 9, seed=1), draw(4, 9, seed=2), draw(4, 9).abs()))
    gradient, scalars = draw(4, 9, seed=4), coefficients(7, LR, BETAS, DECAY)
    wide = [x.float() for x in (p, m, v)]

    adamw_update(p, gradient, m, v, scalars)
    adamw_update(wide[0], gradient, wide[1], wide[2], scalars)

    for narrow, exact in zip((p, m, v), wide, strict=True):
        assert narrow.dtype == torch.bfloat16
        assert torch.equal(narrow, exact.bfloat16())


def test_the_gradient_is_left_alone(passes):
    gradient = draw(3, 5)
    kept = gradient.clone()

    adamw_update(
        draw(3, 5, seed=1), gradient, *torch.zeros(2, 3, 5), coefficients(1, LR, BETAS, DECAY)
    )

    assert torch.equal(gradient, kept)


@given(
    step=st.integers(1, 100_000),
    beta1=st.sampled_from([0.8, 0.96]),
    beta2=st.sampled_from([0.95, 0.96, 0.995]),
)
def test_the_scalars_of_an_update_are_rounded_once(step, beta1, beta2):
    # The betas are first rounded to float32, so that bias correction and averages fit together.
    b1, b2, lr = (float(torch.tensor(x)) for x in (beta1, beta2, 0.3))

    scalars = coefficients(step, 0.3, (beta1, beta2), 0.01)

    assert scalars.dtype == torch.float32
    expected = [1 - lr * 0.01, 1 - b1, 1 - b2, 1 - b2**step, 1e-10, lr / (1 - b1**step)]
    torch.testing.assert_close(
        scalars.double(), torch.tensor(expected, dtype=torch.float64), rtol=2e-7, atol=0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_computes_the_bits_of_a_cpu(dtype):
    results = []
    for device in ("cpu", "cuda"):
        p = draw(300, 70, seed=9).to(device, dtype)
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for step in range(1, 6):
            gradient = draw(300, 70, seed=step).to(device)
            scalars = coefficients(step, LR, BETAS, DECAY).to(device)
            adamw_update(p, gradient, m, v, scalars)
        results.append([x.cpu() for x in (p, m, v)])

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

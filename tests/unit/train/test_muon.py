from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from yoked.train.model.linear import onednn_available
from yoked.train.optim.muon import MuonStep, muon_update, orthogonalize, reduced_dimension

SHAPES = [(24, 8), (8, 24), (12, 12), (2, 12), (1, 5)]
STEP = MuonStep(lr=0.02, momentum=0.9, weight_decay=0.28)
COEFFICIENTS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moments(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Momentum buffer and second moment of K matrices, at rest."""
    K, R, C = shape
    return torch.zeros(shape), torch.zeros((K, R, 1) if R >= C else (K, 1, C))


def frobenius(X: Tensor) -> Tensor:
    return X.square().sum().sqrt()


def reference_orthogonalise(G: Tensor) -> Tensor:
    """Row equilibration, then Polar Express, on one matrix in float64."""
    rows, columns = G.shape
    row_norms = G.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
    X = G * (frobenius(G) / math.sqrt(rows)) / row_norms
    X = X / (1.01 * frobenius(X) + 1e-6)
    for a, b, c in COEFFICIENTS:
        if rows > columns:
            A = X.t() @ X
            X = a * X + X @ (b * A + c * A @ A)
        else:
            A = X @ X.t()
            X = a * X + (b * A + c * A @ A) @ X
    return X * math.sqrt(min(rows, columns)) / frobenius(X).clamp_min(1e-6)


class Reference:
    """One matrix on its way, in float64."""

    def __init__(self, parameter: Tensor) -> None:
        self.p = parameter.double().clone()
        self.buffer = torch.zeros_like(self.p)
        self.second: Tensor | float = 0.0

    def step(self, gradient: Tensor, step: MuonStep) -> None:
        rows, columns = self.p.shape
        g, m = gradient.double(), step.momentum
        self.buffer = m * self.buffer + (1 - m) * g
        g = reference_orthogonalise((1 - m) * g + m * self.buffer)
        mean_square = g.square().mean(1 if rows >= columns else 0, keepdim=True)
        self.second = 0.9 * self.second + 0.1 * mean_square
        scaled = g / self.second.clamp_min(1e-10).sqrt()
        g = scaled * frobenius(g) / frobenius(scaled).clamp_min(1e-10)
        lr = step.lr * math.sqrt(max(1.0, rows / columns))
        decay = lr * step.weight_decay * self.p * (g * self.p >= 0)
        self.p = self.p - lr * g - decay


@pytest.mark.parametrize("shape", SHAPES)
def test_in_float64_the_update_is_that_of_the_formulas_to_the_last_digits(shape):
    stack = draw(2, *shape, seed=9).double()
    singles = [Reference(matrix) for matrix in stack]
    buffer, second = (state.double() for state in moments(stack.shape))

    for number in range(3):
        gradients = draw(2, *shape, seed=number).double()
        muon_update(stack, gradients, buffer, second, STEP)
        for single, gradient in zip(singles, gradients, strict=True):
            single.step(gradient, STEP)

    for number, single in enumerate(singles):
        torch.testing.assert_close(stack[number], single.p, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", ["default", "onednn"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_update_is_that_of_the_formulas(shape, backend):
    if backend == "onednn" and not onednn_available():
        pytest.skip("this PyTorch has no oneDNN")
    stack = draw(3, *shape, seed=9)
    singles = [Reference(matrix) for matrix in stack]
    buffer, second = moments(stack.shape)

    for number in range(4):
        gradients = draw(3, *shape, seed=number) * 10.0 ** (number - 2)
        step = MuonStep(0.02, 0.85 + 0.03 * number, 0.28, backend)
        muon_update(stack, gradients, buffer, second, step)
        for single, gradient in zip(singles, gradients, strict=True):
            single.step(gradient, step)

    for number, single in enumerate(singles):
        moved = (single.p - draw(3, *shape, seed=9)[number].double()).norm()
        assert (stack[number].double() - single.p).norm() < 1e-3 * moved
        torch.testing.assert_close(buffer[number].double(), single.buffer, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(second[number].double(), single.second, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_orthogonalised_matrix_has_singular_values_near_one(shape):
    X = orthogonalize(draw(1, *shape))[0]

    small = min(shape)
    torch.testing.assert_close(X.norm(), torch.tensor(math.sqrt(small)))
    values = torch.linalg.svdvals(X)
    assert values.max() < 1.3
    assert values.min() > 0.7


def test_rows_of_unlike_length_count_alike():
    G = draw(1, 8, 24)
    scaled = G * torch.logspace(-3, 3, 8)[None, :, None]

    torch.testing.assert_close(orthogonalize(scaled), orthogonalize(G), rtol=1e-3, atol=1e-4)


def test_the_length_of_a_gradient_does_not_matter():
    G = draw(1, 12, 12)

    torch.testing.assert_close(orthogonalize(1e3 * G), orthogonalize(G), rtol=1e-3, atol=1e-3)


def test_each_matrix_of_a_stack_is_treated_by_itself():
    G = draw(3, 12, 12)
    G[1] *= 1e4

    whole = orthogonalize(G)

    for number in range(3):
        torch.testing.assert_close(
            whole[number], orthogonalize(G[number : number + 1])[0], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_bfloat16", [False, True])
def test_a_gradient_of_zero_leaves_only_weight_decay(shape, in_bfloat16):
    parameters = draw(2, *shape)
    expected = parameters * (1 - 0.02 * math.sqrt(max(1, shape[0] / shape[1])) * 0.28)
    step = MuonStep(0.02, 0.85, 0.28, in_bfloat16=in_bfloat16)

    muon_update(parameters, torch.zeros(2, *shape), *moments((2, *shape)), step)

    torch.testing.assert_close(parameters, expected)


def test_weight_decay_acts_only_where_the_update_shrinks_the_weight():
    gradients = draw(1, 12, 12)
    decayed, plain = draw(1, 12, 12, seed=1), draw(1, 12, 12, seed=1)
    muon_update(decayed, gradients, *moments((1, 12, 12)), STEP)
    muon_update(plain, gradients, *moments((1, 12, 12)), MuonStep(0.02, 0.9, 0.0))
    before = draw(1, 12, 12, seed=1)

    shrinks = (before - plain) * before > 0

    torch.testing.assert_close(decayed[~shrinks], plain[~shrinks])
    torch.testing.assert_close((plain - decayed)[shrinks], (0.02 * 0.28 * before)[shrinks])


def test_gradients_are_left_alone():
    gradients = draw(2, 8, 24)
    kept = gradients.clone()

    muon_update(draw(2, 8, 24, seed=1), gradients, *moments((2, 8, 24)), STEP)

    assert torch.equal(gradients, kept)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_orthogonalises_nearly_the_same(shape):
    G = draw(2, *shape)

    narrow, exact = orthogonalize(G, in_bfloat16=True), orthogonalize(G)

    assert narrow.dtype == torch.float32
    assert (narrow - exact).norm() < 0.05 * exact.norm()
    assert not torch.equal(narrow, exact)


def test_normuon_reduces_the_last_dimension_of_tall_and_square_matrices():
    assert [reduced_dimension(*shape) for shape in ((3, 2), (2, 2), (2, 3))] == [-1, -1, -2]


def test_a_rate_that_float32_cannot_hold_gives_weights_that_are_not_finite():
    parameters = draw(1, 8, 8, seed=1)
    absurd = MuonStep(lr=1e300, momentum=0.95, weight_decay=0.28)

    muon_update(parameters, draw(1, 8, 8), *moments((1, 8, 8)), absurd)

    # The trainer ends such a run at the next loss, and says why.
    assert not parameters.isfinite().all()

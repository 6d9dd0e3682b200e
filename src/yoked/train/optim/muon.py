"""Muon with Polar Express, row equilibration and NorMuon, as nanochat combines them.

Sources: Muon (Jordan et al. 2024), Polar Express (arXiv 2505.16932), NorMuon (arXiv
2510.05491), MuonEq (arXiv 2603.28254), Muon+ (arXiv 2602.21545).

Shape legend: K matrices of one shape (R, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.matmul import Library, multiply
from yoked.train.precision import widen

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
BETA2 = 0.9
NORM_FLOOR = 1e-6
SECOND_MOMENT_FLOOR = 1e-10


@dataclass(frozen=True)
class MuonStep:
    """What one update takes, all matrices of a run alike but for their shape."""

    lr: float
    momentum: float
    weight_decay: float
    library: Library = "default"
    low_precision: bool = False
    """Orthogonalise in bfloat16, as a run that computes in bfloat16 does."""


def _gram(X: Tensor, library: Library) -> Tensor:
    """X X^T (K, R, R)."""
    if library == "default" or X.device.type != "cpu":
        return X @ X.mT
    return torch.stack([multiply(matrix, matrix, library) for matrix in X])


def _polynomial_step(X: Tensor, a: float, b: float, c: float, library: Library) -> Tensor:
    """aX + (bA + cA^2)X with A = X X^T; X wide or square, (K, R, C), R <= C."""
    A = _gram(X, library)
    if library == "default" or X.device.type != "cpu":
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        return torch.baddbmm(X, B, X, beta=a)
    # A and B are symmetric, so the second operand of `multiply` needs no transpose.
    squares = torch.stack([multiply(matrix, matrix, library) for matrix in A])
    B = A.mul_(b).add_(squares, alpha=c)
    products = torch.stack(
        [multiply(left, right.mT, library) for left, right in zip(B, X, strict=True)]
    )
    return products.add_(X, alpha=a)


def orthogonalise(G: Tensor, library: Library = "default", low_precision: bool = False) -> Tensor:
    """An orthogonal matrix near each of G (K, R, C), scaled to the Frobenius norm sqrt(min(R, C)).

    Rows are first scaled to the RMS row norm, which evens out the spectrum.
    """
    rows, columns = G.shape[-2:]
    X = G.bfloat16() if low_precision else G
    row_norm = widen(X).norm(dim=-1, keepdim=True)
    rms_row_norm = row_norm.square().mean(dim=-2, keepdim=True).sqrt()
    X = X * (rms_row_norm / row_norm.clamp_min(NORM_FLOOR)).to(X.dtype)
    X = X / (X.norm(dim=(-2, -1), keepdim=True) * 1.01 + NORM_FLOOR)
    # X^T X for tall matrices is X X^T of their transposes: the smaller of the two products.
    X = X.mT.contiguous() if rows > columns else X
    for a, b, c in POLAR_EXPRESS:
        X = _polynomial_step(X, a, b, c, library)
    X = (X.mT.contiguous() if rows > columns else X).to(G.dtype)
    scale: Tensor = min(rows, columns) ** 0.5 / X.norm(dim=(-2, -1), keepdim=True).clamp_min(
        NORM_FLOOR
    )
    return X * scale


def reduced_dimension(rows: int, columns: int) -> int:
    """The dimension over which NorMuon averages squares: the last of tall and square matrices."""
    return -1 if rows >= columns else -2


def _normalise(G: Tensor, second_moment: Tensor) -> Tensor:
    """Divide by the running root mean square of each row (or column), keeping the norm."""
    dim = reduced_dimension(G.size(-2), G.size(-1))
    mean_square = G.square().mean(dim=dim, keepdim=True)
    count = G.size(dim)
    norm = (mean_square.sum(dim=(-2, -1), keepdim=True) * count).sqrt()
    second_moment.lerp_(mean_square, 1 - BETA2)
    inverse = second_moment.clamp_min(SECOND_MOMENT_FLOOR).rsqrt()
    scaled_square = mean_square * count * inverse.square()
    new_norm = scaled_square.sum(dim=(-2, -1), keepdim=True).sqrt()
    return G * (inverse * (norm / new_norm.clamp_min(SECOND_MOMENT_FLOOR)))


@torch.no_grad()
def muon_update(
    parameters: Tensor,
    gradients: Tensor,
    momentum_buffer: Tensor,
    second_moment: Tensor,
    step: MuonStep,
) -> None:
    """One step in place on K stacked matrices (K, R, C) fp32; gradients are left alone.

    momentum_buffer (K, R, C); second_moment (K, R, 1) where R >= C, else (K, 1, C).
    Holds matrix products, so unlike CPUs differ in its last bits: one rank computes it.
    """
    rows, columns = parameters.shape[-2:]
    momentum_buffer.lerp_(gradients, 1 - step.momentum)
    G = torch.lerp(gradients, momentum_buffer, step.momentum)
    G = orthogonalise(G, step.library, step.low_precision)
    G = _normalise(G, second_moment)
    lr = step.lr * max(1.0, rows / columns) ** 0.5
    # Cautious decay: only where the update and the weight point the same way.
    agree = (G * parameters >= 0).to(parameters.dtype)
    parameters.sub_(lr * G + lr * step.weight_decay * parameters * agree)

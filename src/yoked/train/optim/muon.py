"""Muon with Polar Express, row equilibration and NorMuon, as nanochat combines them.

Sources: Muon (Jordan et al. 2024), Polar Express (arXiv 2505.16932), NorMuon (arXiv
2510.05491), MuonEq (arXiv 2603.28254), Muon+ (arXiv 2602.21545).

A CPU updates one matrix at a time: what lies between the products stays in the cache, and
batched products are slower there. A GPU updates a stack of matrices at once.

Shape legend: K matrices of one shape (R, C); (.., R, C) is one of them or the stack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.train.model.linear import MatmulBackend, mm_nt
from yoked.train.model.precision import widen

# (a, b, c) of each step: X <- aX + (bA + cA^2) X.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
BETA2 = 0.9  # NorMuon's; no bias correction
# In the first step c_proj is zero, and with it most gradients: no division by their norm.
NORM_FLOOR = 1e-6
SECOND_MOMENT_FLOOR = 1e-10
# The Polar Express step, counted from 0, after which X X^T is computed anew.
RENEWED_AFTER = 1
# Rows from which three quarters of a symmetric product take less time than all of it.
SMALLEST_SPLIT, SMALLEST_SPLIT_BF16 = 128, 512
MATRIX = 2
# Numbers of matrices that a GPU updates at once: each of the temporaries is as large, 256 MB.
GPU_STACK_NUMBERS = 64_000_000


@dataclass(frozen=True)
class MuonStep:
    """Settings of one update, the same for all matrices of a run."""

    lr: float
    momentum: float
    weight_decay: float
    backend: MatmulBackend = "default"
    # Orthogonalize in bfloat16, as nanochat does in a run that computes in it.
    in_bfloat16: bool = False


def _product(left: Tensor, right: Tensor, backend: MatmulBackend) -> Tensor:
    """left (.., R, C) @ right.mT of right (.., S, C): (.., R, S)."""
    if left.dim() == MATRIX:
        return mm_nt(left, right, backend)
    return left @ right.mT


def _plus_product(
    added: Tensor, factor: float, left: Tensor, right: Tensor, scale: float, backend: MatmulBackend
) -> Tensor:
    """factor * added + scale * `_product`."""
    if backend != "default":
        # oneDNN's operator cannot accumulate.
        return _product(left, right, backend).mul_(scale).add_(added, alpha=factor)
    fused = torch.addmm if left.dim() == MATRIX else torch.baddbmm
    return fused(added, left, right.mT, beta=factor, alpha=scale)


def _symmetric_product(left: Tensor, right: Tensor, backend: MatmulBackend) -> Tensor:
    """`_product` whose result is symmetric, (.., R, R): three of its four quarters are computed."""
    size = left.size(-2)
    smallest = SMALLEST_SPLIT_BF16 if left.dtype == torch.bfloat16 else SMALLEST_SPLIT
    if size < smallest or left.dim() != MATRIX:
        return _product(left, right, backend)
    half = size // 2
    out = left.new_empty(size, size)
    out[:half] = mm_nt(left[:half], right, backend)  # (R/2, R): two of the quarters
    out[half:, half:] = mm_nt(left[half:], right[half:], backend)
    out[half:, :half] = out[:half, half:].t()  # the lower left is the upper right
    return out


def _without_identity(A: Tensor, b: float, c: float, backend: MatmulBackend) -> Tensor:
    """bA + cA^2 for symmetric A (.., R, R)."""
    if A.dtype == torch.bfloat16:
        # One fused product rounds once: worth more than the quarter that symmetry saves.
        return _plus_product(A, b, A, A, c, backend)
    return _symmetric_product(A, A, backend).mul_(c).add_(A, alpha=b)


def _polar_express(X: Tensor, backend: MatmulBackend) -> Tensor:
    """Five steps X <- aX + (bA + cA^2) X with A = X X^T; X (.., R, C), R <= C."""
    for a, b, c in POLAR_EXPRESS:
        B = _without_identity(_symmetric_product(X, X, backend), b, c, backend)
        X = _plus_product(X, a, B, X.mT, 1.0, backend)  # B X: the right side is transposed
    return X


def _polar_express_gram(X: Tensor, backend: MatmulBackend) -> Tensor:
    """The same five steps on the Gram matrix X X^T, (.., R, R); cheaper for R much less than C.

    Each step multiplies X from the left by a polynomial Q of A. These commute, so P, the product
    of the Qs, is kept instead of X, and A becomes Q A Q.
    """
    # Rounding of A hides its smallest eigenvalues. The first two steps raise them; X is formed
    # then, and A computed anew: float32 is as near to the exact result as `_polar_express` is
    # (2e-5 on spectra over four decades).
    A = _symmetric_product(X, X, backend)
    P: Tensor | None = None
    last = len(POLAR_EXPRESS) - 1
    for number, (a, b, c) in enumerate(POLAR_EXPRESS):
        Q = _without_identity(A, b, c, backend)
        Q.diagonal(dim1=-2, dim2=-1).add_(a)  # Q = aI + bA + cA^2
        # `_product` transposes its right side; these are symmetric.
        P = Q if P is None else _symmetric_product(Q, P, backend)
        if number == RENEWED_AFTER:
            X, P = _product(P, X.mT, backend), None
            A = _symmetric_product(X, X, backend)
        elif number < last:
            A = _symmetric_product(_product(Q, A, backend), Q, backend)
    assert P is not None
    return _product(P, X.mT, backend)


def orthogonalize(
    G: Tensor, backend: MatmulBackend = "default", in_bfloat16: bool = False
) -> Tensor:
    """The orthogonal matrix near each G (.., R, C), with Frobenius norm sqrt(min(R, C))."""
    rows, columns = G.shape[-2:]
    X = G.bfloat16() if in_bfloat16 else G
    # MuonEq: scale each row to the RMS row norm, which narrows the spectrum.
    row_norm = widen(X).norm(dim=-1, keepdim=True)  # (.., R, 1)
    rms_row_norm = row_norm.square().mean(dim=-2, keepdim=True).sqrt()
    X = X * (rms_row_norm / row_norm.clamp_min(NORM_FLOOR)).to(X.dtype)
    # Polar Express is for singular values up to 1; 1% is the margin for rounding.
    X = X / (X.norm(dim=(-2, -1), keepdim=True) * 1.01 + NORM_FLOOR)
    # A tall matrix is transposed: X X^T is then the smaller of its two Gram matrices.
    X = X.mT.contiguous() if rows > columns else X
    # In bfloat16 the powers of A would lose digits that the steps on X keep.
    wide = X.size(-1) >= 2 * X.size(-2) and X.dtype != torch.bfloat16
    X = _polar_express_gram(X, backend) if wide else _polar_express(X, backend)
    X = (X.mT.contiguous() if rows > columns else X).to(G.dtype)
    scale: Tensor = min(rows, columns) ** 0.5 / X.norm(dim=(-2, -1), keepdim=True).clamp_min(
        NORM_FLOOR
    )
    return X * scale


def reduced_dimension(rows: int, columns: int) -> int:
    """The dimension over which NorMuon averages squares: C of tall and square matrices, else R."""
    return -1 if rows >= columns else -2


def _normalize(G: Tensor, second_moment: Tensor) -> Tensor:
    """NorMuon: divide each row (or column) by its running RMS, and keep the Frobenius norm."""
    dim = reduced_dimension(G.size(-2), G.size(-1))
    mean_square = G.square().mean(dim=dim, keepdim=True)  # as second_moment
    count = G.size(dim)
    norm = (mean_square.sum(dim=(-2, -1), keepdim=True) * count).sqrt()  # (.., 1, 1)
    second_moment.lerp_(mean_square, 1 - BETA2)
    inverse = second_moment.clamp_min(SECOND_MOMENT_FLOOR).rsqrt()
    # The new norm follows from the means, without another pass over G.
    scaled_square = mean_square * count * inverse.square()
    new_norm = scaled_square.sum(dim=(-2, -1), keepdim=True).sqrt()
    # The factors are (.., R, 1) or (.., 1, C): one pass over G.
    return G * (inverse * (norm / new_norm.clamp_min(SECOND_MOMENT_FLOOR)))


@torch.no_grad()
def muon_update(
    parameters: Tensor,
    gradients: Tensor,
    momentum_buffer: Tensor,
    second_moment: Tensor,
    step: MuonStep,
) -> None:
    """One step in place on K stacked matrices (K, R, C) fp32; gradients keep their values.

    momentum_buffer (K, R, C); second_moment (K, R, 1) where R >= C, else (K, 1, C).
    Only a matrix's owner calls this: products round differently on unlike CPUs.
    """
    if parameters.device.type == "cpu":
        for each in zip(parameters, gradients, momentum_buffer, second_moment, strict=True):
            _update(*each, step)
        return
    # A GPU is busy with a few matrices; temporaries of all of them would be gigabytes.
    count = max(1, GPU_STACK_NUMBERS // parameters[0].numel())
    for first in range(0, len(parameters), count):
        some = slice(first, first + count)
        _update(parameters[some], gradients[some], momentum_buffer[some], second_moment[some], step)


def _update(
    parameters: Tensor,
    gradients: Tensor,
    momentum_buffer: Tensor,
    second_moment: Tensor,
    step: MuonStep,
) -> None:
    rows, columns = parameters.shape[-2:]
    momentum_buffer.lerp_(gradients, 1 - step.momentum)
    # Nesterov's momentum. Out of place: gradients keep their values.
    G = torch.lerp(gradients, momentum_buffer, step.momentum)
    G = orthogonalize(G, step.backend, step.in_bfloat16)
    G = _normalize(G, second_moment)
    lr = _in_float32(step.lr * max(1.0, rows / columns) ** 0.5)  # as in Muon (Jordan et al. 2024)
    # Cautious weight decay: only where the update and the weight have the same sign.
    decay = (G * parameters >= 0).to(parameters.dtype).mul_(parameters)
    parameters.sub_(G.mul_(lr).add_(decay, alpha=_in_float32(lr * step.weight_decay)))


def _in_float32(x: float) -> float:
    """x, or infinity beyond float32's range: PyTorch raises for such a factor of a tensor."""
    return x if abs(x) <= torch.finfo(torch.float32).max else math.copysign(math.inf, x)

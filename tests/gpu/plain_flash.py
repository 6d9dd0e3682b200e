"""PyTorch's flash kernel for rows of unequal length, in plain PyTorch for the CPU.

The operation is a GPU's alone. It is registered for the whole process: tests/gpu is one of its own.

Shape legend: N tokens of all rows, H heads, D head_dim.
"""

from __future__ import annotations

import functools
import importlib
import math

import pytest
import torch
from torch import Tensor


@pytest.fixture
def plain_flash() -> None:
    """The CPU, and so the simulated device, has the operation."""
    pytest.importorskip("torch.nn.attention.varlen")
    _register()


@functools.cache
def _register() -> None:
    varlen = importlib.import_module("torch.nn.attention.varlen")
    varlen._varlen_attn.register_kernel("cpu", _forward)
    varlen._varlen_attn_backward.register_kernel("cpu", _backward)


def _scores(q_NHD: Tensor, k_NHD: Tensor, starts: Tensor, window: list[int]) -> Tensor:
    """(H, N, N) float32, -inf where a query does not see a key."""
    left, right = window
    position = torch.arange(len(q_NHD))
    row = torch.bucketize(position, starts[1:], right=True)
    behind = position[:, None] - position[None, :]
    sees = (row[:, None] == row[None, :]) & (behind <= left) & (behind >= -right)
    scores = torch.einsum("qhd,khd->hqk", q_NHD.float(), k_NHD.float()) / math.sqrt(q_NHD.size(-1))
    return scores.masked_fill(~sees, -math.inf)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    _key_starts: Tensor,
    _most_queries: int,
    _most_keys: int,
    _is_causal: bool,
    _scale: None,
    window: list[int],
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(q, k, starts, window)
    log_sum = scores.logsumexp(-1)  # (H, N)
    probabilities = (scores - log_sum[..., None]).exp()
    y = torch.einsum("hqk,khd->qhd", probabilities, v.float()).to(q.dtype)
    return y.contiguous(), log_sum, torch.zeros(2, dtype=torch.uint64)


def _backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    log_sum: Tensor,
    starts: Tensor,
    _key_starts: Tensor,
    _most_queries: int,
    _most_keys: int,
    _is_causal: bool,
    _random: Tensor,
    _scale: None,
    window: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    probabilities = (_scores(q, k, starts, window) - log_sum[..., None]).exp()
    dv = torch.einsum("hqk,qhd->khd", probabilities, dy.float())
    dprobabilities = torch.einsum("qhd,khd->hqk", dy.float(), v.float())
    row_dot = (dy.float() * y.float()).sum(-1).T[..., None]  # (H, N, 1)
    dscores = probabilities * (dprobabilities - row_dot) / math.sqrt(q.size(-1))
    dq = torch.einsum("hqk,khd->qhd", dscores, k.float())
    dk = torch.einsum("hqk,qhd->khd", dscores, q.float())
    return tuple(x.to(q.dtype).contiguous() for x in (dq, dk, dv))

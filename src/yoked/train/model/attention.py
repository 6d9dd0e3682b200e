"""Causal attention over a sliding window, by one of three implementations.

`sdpa` is PyTorch's scaled_dot_product_attention. `blocked` takes blocks of queries, and for each
only the keys that the mask lets it see, as batched matrix products: at 512 tokens a CPU needs
about 0.6 of the time of PyTorch's kernel, which computes masked scores too. `blocked` keeps the
probabilities for the backward pass, T^2 / 2 numbers a head, so it is for short rows. Scores and
their gradients are computed in float32 and rounded to the inputs' dtype before they are
multiplied again, as in FlashAttention (Dao et al. 2022). `flash` is `sdpa`, but layers with a
window take PyTorch's flash kernel for rows of unequal length, which skips what a window hides:
for bfloat16, on CUDA from compute capability 8.0 on.

Shape legend: B batch rows, T tokens a row, H heads, D head_dim, N = B*H, Q queries of a block,
K keys that a block sees.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.train.model.precision import widen

AttentionPath = Literal["sdpa", "blocked", "flash"]
ATTENTION_PATHS: tuple[AttentionPath, ...] = get_args(AttentionPath)
CPU_PATHS: tuple[AttentionPath, ...] = ("sdpa", "blocked")
QUERY_BLOCK = 64
BLOCKED_MAX_TOKENS = 1024  # 0.5 M probabilities a head and row; `auto` does not try more


def attend(
    q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, window: int, path: AttentionPath = "sdpa"
) -> Tensor:
    """Each token attends to itself and at most `window` tokens before it; returns (B, T, H, D)."""
    if path == "blocked" and q_BTHD.shape == k_BTHD.shape:
        return _attend_blocked(q_BTHD, k_BTHD, v_BTHD, window)
    if path == "flash" and window < q_BTHD.size(1):
        return _attend_flash(q_BTHD, k_BTHD, v_BTHD, window)
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTHD, v_BTHD))  # (B, H, T, D)
    tokens = q.size(2)
    grouped = q.size(1) != k.size(1)
    if window >= tokens:
        # Without a mask tensor PyTorch may take its flash kernel.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    else:
        mask = _visible(0, tokens, 0, window, q.device)  # (T, T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return y.transpose(1, 2)


def _attend_flash(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, window: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # with windows since torch 2.11

    B, T, H, _ = q_BTHD.shape
    # Rows lie one behind the other, (B * T, H, D): each is a sequence of its own.
    starts = T * torch.arange(B + 1, dtype=torch.int32, device=q_BTHD.device)
    more: dict[str, Any] = {"window_size": (window, 0)}
    if k_BTHD.size(2) != H:
        more["enable_gqa"] = True  # since torch 2.12
    q, k, v = (x.flatten(0, 1) for x in (q_BTHD, k_BTHD, v_BTHD))
    y = varlen_attn(q, k, v, starts, starts, T, T, **more)
    assert isinstance(y, Tensor), "what else it could tell was not asked for"
    return y.view(q_BTHD.shape)


def _visible(start: int, stop: int, first_key: int, window: int, device: torch.device) -> Tensor:
    """Whether query [start, stop) sees key [first_key, stop): (Q, K) bool."""
    query = torch.arange(start, stop, device=device)[:, None]  # (Q, 1)
    key = torch.arange(first_key, stop, device=device)[None, :]  # (1, K)
    return (key <= query) & (query - key <= window)


@functools.lru_cache(maxsize=256)
def _bias(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """0 where a query sees a key, else -inf: (Q, K) float32."""
    # It depends on distances alone: blocks of one size share it, in all layers and micro-batches.
    visible = _visible(keys - queries, keys, 0, window, device)
    return torch.zeros(visible.shape, device=device).masked_fill_(~visible, -math.inf)


def _attend_blocked(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, window: int) -> Tensor:
    B, T, H, D = q_BTHD.shape
    # (N, T, D). What the C pass rotated lies so in memory already, and is not copied.
    q, k, v = (x.transpose(1, 2).reshape(B * H, T, D) for x in (q_BTHD, k_BTHD, v_BTHD))
    y: Tensor = _Blocked.apply(q, k, v, window)  # type: ignore[no-untyped-call]
    return y.view(B, H, T, D).transpose(1, 2)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """q, k, v (N, T, D); returns (N, T, D)."""
        tokens, scale = q.size(1), q.size(2) ** -0.5
        wide_q, wide_k = widen(q), widen(k)
        y = torch.empty_like(q)
        kept: list[Tensor] = []  # probabilities (N, Q, K) of each block
        for start in range(0, tokens, QUERY_BLOCK):
            stop, first = min(start + QUERY_BLOCK, tokens), max(0, start - window)
            bias = _bias(stop - start, stop - first, window, q.device)
            # The bias is added by the product itself: one pass over the scores (N, Q, K) less.
            scores = torch.baddbmm(
                bias.to(wide_q.dtype),
                wide_q[:, start:stop],
                wide_k[:, first:stop].transpose(1, 2),
                alpha=scale,
            )
            probabilities = torch.softmax(scores, dim=-1).to(q.dtype)
            y[:, start:stop] = torch.bmm(probabilities, v[:, first:stop])
            kept.append(probabilities)
        ctx.save_for_backward(q, k, v, y, *kept)
        ctx.window = window
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, y, *kept = ctx.saved_tensors
        dy = upstream[0]
        tokens, scale = q.size(1), q.size(2) ** -0.5
        wide_dy, wide_v = widen(dy), widen(v)
        dq = torch.empty_like(q)  # each query is in one block
        # Each key is in several blocks: its gradient is a sum, in float32.
        dk, dv = torch.zeros_like(wide_v), torch.zeros_like(wide_v)
        # sum_j dP_ij P_ij = dy_i . y_i (Dao et al. 2022), so the row sums need no T x T pass.
        row_dot = (wide_dy * y).sum(-1, keepdim=True)  # (N, T, 1)
        for block, start in enumerate(range(0, tokens, QUERY_BLOCK)):
            stop, first = min(start + QUERY_BLOCK, tokens), max(0, start - ctx.window)
            probabilities, seen = kept[block], slice(first, stop)
            dv[:, seen] += torch.bmm(probabilities.transpose(1, 2), dy[:, start:stop])
            # Softmax backward: dS = P * (dP - row_dot), (N, Q, K).
            dscores = torch.bmm(wide_dy[:, start:stop], wide_v[:, seen].transpose(1, 2))
            dscores = dscores.sub_(row_dot[:, start:stop]).mul_(probabilities).to(q.dtype)
            dq[:, start:stop] = torch.bmm(dscores, k[:, seen])
            dk[:, seen] += torch.bmm(dscores.transpose(1, 2), q[:, start:stop])
        # The scale of the scores, once a row of D numbers instead of once a score.
        return dq.mul_(scale), dk.mul_(scale).to(q.dtype), dv.to(q.dtype), None

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from yoked.train.model.attention import CPU_PATHS, attend


def draw(tokens: int, heads: int = 2, kv_heads: int | None = None, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(batch, tokens, h, 8) for h in (heads, kv_heads or heads, kv_heads or heads)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def reference(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Softmax attention of query i over keys i - window ... i, one query at a time."""
    repeat = q.size(2) // k.size(2)
    k, v = (x.repeat_interleave(repeat, dim=2) for x in (k, v))
    rows = []
    for i in range(q.size(1)):
        first = max(0, i - window)
        scores = torch.einsum("bhd,bkhd->bhk", q[:, i], k[:, first : i + 1])
        weights = torch.softmax(scores / math.sqrt(q.size(3)), dim=-1)
        rows.append(torch.einsum("bhk,bkhd->bhd", weights, v[:, first : i + 1]))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("path", CPU_PATHS)
@settings(max_examples=25, deadline=None)
@given(tokens=st.sampled_from([1, 2, 63, 64, 65, 130]), window=st.integers(1, 140))
def test_each_query_sees_its_window_and_nothing_else(path, tokens, window):
    q, k, v = (x.requires_grad_() for x in draw(tokens))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    upstream = draw(tokens)[0]

    y = attend(q, k, v, window, path)
    gradients = torch.autograd.grad(y, (q, k, v), upstream)

    expected = reference(*exact, window)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    for ours, right in zip(
        gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True
    ):
        torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", CPU_PATHS)
@pytest.mark.parametrize("window", [3, 64, 1000])
def test_fewer_key_heads_serve_groups_of_query_heads(path, window):
    q, k, v = draw(70, heads=4, kv_heads=2)

    y = attend(q, k, v, window, path)

    torch.testing.assert_close(y, reference(q, k, v, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", CPU_PATHS)
def test_a_later_token_changes_nothing_before_it(path):
    q, k, v = draw(100)
    before = attend(q, k, v, 1000, path)
    for x in (q, k, v):
        x[:, 80:] += 100.0

    after = attend(q, k, v, 1000, path)

    assert torch.equal(before[:, :80], after[:, :80])


@pytest.mark.parametrize("path", CPU_PATHS)
def test_bfloat16_stays_bfloat16_and_near_the_exact_result(path):
    q, k, v = (x.bfloat16() for x in draw(130))

    y = attend(q, k, v, 64, path)

    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(
        y.float(), reference(q.float(), k.float(), v.float(), 64), rtol=0.02, atol=0.02
    )


def test_scores_far_apart_stay_finite_on_the_blocked_path():
    q, k, v = draw(70)

    y = attend(q * 1e3, k * 1e3, v, 1000, "blocked")

    assert y.isfinite().all()

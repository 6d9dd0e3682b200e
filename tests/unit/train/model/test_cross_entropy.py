from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from yoked.train.model import cross_entropy
from yoked.train.model.cross_entropy import (
    GRAD_CHUNK_COLUMNS,
    FusedLinearCrossEntropy,
    block_columns,
    grad_chunk_edges,
)
from yoked.train.model.linear import MatmulBackends, onednn_available

WIDTH = 8


def draw(tokens: int, vocab: int, padded: int, *, scale: float = 3.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens * 1000 + vocab)
    hidden = torch.randn(tokens, WIDTH, generator=generator)
    weight = torch.randn(padded, WIDTH, generator=generator) * scale
    targets = torch.randint(-1, vocab, (tokens,), generator=generator)
    return hidden, weight, targets


def reference(hidden: Tensor, weight: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """Nats of each token, in float64, from all logits at once."""
    logits = 15 * torch.tanh(hidden @ weight.t()[:, :vocab] / 15)
    return F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")


def check_against_reference(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab: int,
    head: FusedLinearCrossEntropy,
    scale: float = 0.25,
) -> None:
    x, w = (t.double().requires_grad_() for t in (hidden, weight))
    expected = reference(x, w, targets, vocab)
    (scale * expected.sum()).backward()
    weight_grad = torch.ones(weight.shape)

    result = head.loss(hidden, weight, targets, grad_scale=scale, weight_grad_VC=weight_grad)

    close = {"rtol": 2e-5, "atol": 1e-5}
    torch.testing.assert_close(result.token_nats.double(), expected.detach(), **close)
    torch.testing.assert_close(result.loss_sum, expected.detach().sum(), **close)
    assert result.loss_sum.dtype == torch.float64
    assert result.hidden_grad is not None
    torch.testing.assert_close(result.hidden_grad.double(), x.grad, **close)
    # Gradients are added to what is there: micro-batches accumulate.
    torch.testing.assert_close(weight_grad.double() - 1, w.grad, **close)


@settings(deadline=None, max_examples=25)
@given(tokens=st.integers(1, 40), vocab=st.integers(2, 130), padding=st.integers(0, 70))
def test_loss_and_gradients_are_those_of_plain_cross_entropy(tokens, vocab, padding):
    hidden, weight, targets = draw(tokens, vocab, vocab + padding)

    check_against_reference(hidden, weight, targets, vocab, FusedLinearCrossEntropy(vocab))


def test_in_float64_the_result_is_exact_to_the_last_digits(monkeypatch):
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", 32)
    hidden, weight, targets = (
        t.double() if t.is_floating_point() else t for t in draw(20, 90, 100)
    )
    x, w = (t.clone().requires_grad_() for t in (hidden, weight))
    reference(x, w, targets, 90).sum().backward()
    weight_grad = torch.zeros_like(weight)

    result = FusedLinearCrossEntropy(90).loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=weight_grad
    )

    torch.testing.assert_close(result.hidden_grad, x.grad, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(weight_grad, w.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("chunk", "block"), [(7, 64), (512, 10), (3, 13), (40, 100), (1, 1)])
def test_no_chunk_or_block_size_changes_the_result(passes, monkeypatch, chunk, block):
    monkeypatch.setattr(cross_entropy, "HEAD_CHUNK_TOKENS", chunk)
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", block)
    hidden, weight, targets = draw(40, 90, 100)

    check_against_reference(hidden, weight, targets, 90, FusedLinearCrossEntropy(90))


@pytest.mark.parametrize("vocab", [90, 96, 100])
@pytest.mark.parametrize("columns", [8, 32])
def test_each_chunk_of_the_gradient_is_told_of_when_nothing_more_is_added_to_it(
    passes, monkeypatch, vocab, columns
):
    monkeypatch.setattr(cross_entropy, "HEAD_CHUNK_TOKENS", 7)
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", 32)
    monkeypatch.setattr(cross_entropy, "THREAD_COLUMNS", columns)
    hidden, weight, targets = draw(20, 80, vocab)
    total = torch.zeros(weight.shape)
    told: list[tuple[int, Tensor]] = []

    def keep(number: int) -> None:
        first, last = grad_chunk_edges(vocab)[number]
        told.append((number, total[first:last].clone()))

    FusedLinearCrossEntropy(80).loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=total, on_grad_chunk=keep
    )

    assert [number for number, _ in told] == list(range(len(grad_chunk_edges(vocab))))
    assert torch.equal(torch.cat([chunk for _, chunk in told]), total)


@pytest.mark.parametrize(("threads", "columns"), [(1, 512), (2, 1024), (3, 1024), (64, 2048)])
def test_a_block_grows_with_the_threads_and_divides_a_chunk_of_the_gradient(
    monkeypatch, threads, columns
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    assert block_columns(torch.device("cpu"), torch.float32) == columns
    assert block_columns(torch.device("cpu"), torch.bfloat16) == GRAD_CHUNK_COLUMNS
    assert block_columns(torch.device("cuda"), torch.float32) == GRAD_CHUNK_COLUMNS
    assert GRAD_CHUNK_COLUMNS % columns == 0


@pytest.mark.skipif(not onednn_available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize(
    "backends", [MatmulBackends.all("onednn"), MatmulBackends("default", "onednn", "default")]
)
def test_no_library_changes_the_result(passes, monkeypatch, backends):
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", 32)
    hidden, weight, targets = draw(20, 90, 100)

    check_against_reference(hidden, weight, targets, 90, FusedLinearCrossEntropy(90, backends))


def test_padding_of_the_vocabulary_has_neither_probability_nor_gradient(passes, monkeypatch):
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", 32)
    hidden, weight, targets = draw(20, 50, 128)
    weight_grad = torch.zeros(weight.shape)
    other = weight.clone()
    other[50:] = 1e3

    first = FusedLinearCrossEntropy(50).loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=weight_grad
    )
    second = FusedLinearCrossEntropy(50).loss(
        hidden, other, targets, grad_scale=1.0, weight_grad_VC=weight_grad
    )

    assert weight_grad[50:].eq(0).all()
    assert torch.equal(first.token_nats, second.token_nats)
    assert first.hidden_grad is not None
    assert second.hidden_grad is not None
    assert torch.equal(first.hidden_grad, second.hidden_grad)


def test_ignored_targets_contribute_nothing(passes):
    hidden, weight, targets = draw(20, 50, 64)
    targets[::2] = -1
    kept = targets != -1
    grads = [torch.zeros(weight.shape) for _ in range(2)]

    whole = FusedLinearCrossEntropy(50).loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=grads[0]
    )
    part = FusedLinearCrossEntropy(50).loss(
        hidden[kept], weight, targets[kept], grad_scale=1.0, weight_grad_VC=grads[1]
    )

    assert whole.token_nats[~kept].eq(0).all()
    assert whole.hidden_grad is not None
    assert whole.hidden_grad[~kept].eq(0).all()
    torch.testing.assert_close(whole.loss_sum, part.loss_sum)
    torch.testing.assert_close(grads[0], grads[1])


def test_only_ignored_targets_give_zero_loss_and_zero_gradient(passes):
    hidden, weight, _ = draw(5, 50, 64)
    weight_grad = torch.zeros(weight.shape)

    result = FusedLinearCrossEntropy(50).loss(
        hidden, weight, torch.full((5,), -1), grad_scale=1.0, weight_grad_VC=weight_grad
    )

    assert result.loss_sum == 0
    assert weight_grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_logits_stay_finite(passes, dtype, sign):
    # Every logit is +-10,000: the softcap holds the loss between 0 and 30 nats + ln V.
    hidden = torch.full((3, WIDTH), 50.0).to(dtype)
    weight = torch.full((64, WIDTH), 25.0 * sign).to(dtype)
    weight[1] = -weight[0]
    weight_grad = torch.zeros(weight.shape)

    result = FusedLinearCrossEntropy(60).loss(
        hidden, weight, torch.tensor([0, 1, -1]), grad_scale=1.0, weight_grad_VC=weight_grad
    )

    expected = reference(hidden.double(), weight.double(), torch.tensor([0, 1, -1]), 60)
    torch.testing.assert_close(result.token_nats.double(), expected, rtol=1e-5, atol=1e-5)
    assert weight_grad.isfinite().all()
    assert result.hidden_grad is not None
    assert result.hidden_grad.isfinite().all()


def test_a_number_that_is_none_is_not_hidden(passes):
    hidden, weight, targets = draw(4, 50, 64)
    hidden[2, 0] = torch.nan
    targets[:] = 5

    result = FusedLinearCrossEntropy(50).loss(hidden, weight, targets)

    assert result.token_nats.isnan().tolist() == [False, False, True, False]
    assert result.loss_sum.isnan()


def test_bfloat16_is_near_the_exact_result(passes, monkeypatch):
    monkeypatch.setattr(cross_entropy, "GRAD_CHUNK_COLUMNS", 32)
    hidden, weight, targets = (
        t.bfloat16() if t.is_floating_point() else t for t in draw(30, 90, 100)
    )
    x, w = (t.double().requires_grad_() for t in (hidden, weight))
    expected = reference(x, w, targets, 90)
    expected.sum().backward()
    weight_grad = torch.zeros(weight.shape)

    result = FusedLinearCrossEntropy(90).loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=weight_grad
    )

    assert result.hidden_grad is not None
    assert result.hidden_grad.dtype == torch.bfloat16
    torch.testing.assert_close(result.loss_sum, expected.detach().sum(), rtol=5e-3, atol=0)
    for ours, right in ((result.hidden_grad, x.grad), (weight_grad, w.grad)):
        assert right is not None
        assert (ours.double() - right).norm() < 0.01 * right.norm()


def test_evaluation_gives_the_loss_of_training_without_gradients(passes):
    hidden, weight, targets = draw(20, 50, 64)
    head = FusedLinearCrossEntropy(50)

    evaluated = head.loss(hidden, weight, targets)
    trained = head.loss(
        hidden, weight, targets, grad_scale=1.0, weight_grad_VC=torch.zeros(weight.shape)
    )

    assert evaluated.hidden_grad is None
    torch.testing.assert_close(evaluated.token_nats, trained.token_nats)


def test_work_buffers_that_were_used_before_leave_no_trace(passes):
    head = FusedLinearCrossEntropy(50)
    sizes = [(30, torch.float32), (10, torch.float32), (10, torch.bfloat16), (35, torch.float32)]
    for tokens, dtype in sizes:
        hidden, weight, targets = draw(tokens, 50, 64)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        grads = [torch.zeros(weight.shape) for _ in range(2)]

        used = head.loss(hidden, weight, targets, grad_scale=1.0, weight_grad_VC=grads[0])
        fresh = FusedLinearCrossEntropy(50).loss(
            hidden, weight, targets, grad_scale=1.0, weight_grad_VC=grads[1]
        )

        assert torch.equal(used.token_nats, fresh.token_nats)
        assert torch.equal(grads[0], grads[1])


def test_a_scale_without_room_for_the_gradient_is_a_mistake():
    hidden, weight, targets = draw(2, 50, 64)

    with pytest.raises(AssertionError, match="go together"):
        FusedLinearCrossEntropy(50).loss(hidden, weight, targets, grad_scale=1.0)

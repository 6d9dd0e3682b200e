from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from yoked.train.model.linear import (
    MATMUL_BACKENDS,
    MatmulBackends,
    addmm_nt_,
    linear,
    mm_nt,
    onednn_available,
)

BACKEND = [
    pytest.param(
        backend,
        marks=pytest.mark.skipif(
            backend == "onednn" and not onednn_available(), reason="this PyTorch has no oneDNN"
        ),
    )
    for backend in MATMUL_BACKENDS
]
needs_onednn = pytest.mark.skipif(not onednn_available(), reason="this PyTorch has no oneDNN")


def needs_bfloat16_in_onednn() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no instructions with which oneDNN multiplies bfloat16")


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", BACKEND)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_products_are_right_whatever_the_strides(backend, transposed):
    a, b = seeded(7, 5), seeded(3, 5, seed=1)
    if transposed[0]:
        a = a.t().contiguous().t()
    if transposed[1]:
        b = b.t().contiguous().t()

    product = mm_nt(a, b, backend)

    torch.testing.assert_close(product.double(), a.double() @ b.double().t(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKEND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_added_to_a_part_of_a_wider_number_format(backend, dtype):
    if backend == "onednn" and dtype == torch.bfloat16:
        needs_bfloat16_in_onednn()
    whole = torch.ones(9, 3)
    a, b = seeded(4, 6).to(dtype), seeded(3, 6, seed=1).to(dtype)

    addmm_nt_(whole[2:6], a, b, backend)

    assert whole.dtype == torch.float32
    assert whole[:2].eq(1).all()
    assert whole[6:].eq(1).all()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(
        whole[2:6], 1 + a.float() @ b.float().t(), rtol=tolerance, atol=tolerance
    )


@needs_onednn
def test_a_layer_has_the_gradients_of_a_plain_one_with_any_library():
    x, weight = seeded(2, 9, 5).requires_grad_(), seeded(3, 5, seed=1).requires_grad_()
    upstream = seeded(2, 9, 3, seed=2)
    expected = torch.autograd.grad(F.linear(x, weight), (x, weight), upstream)

    for backends in (MatmulBackends.all("onednn"), MatmulBackends("default", "onednn", "default")):
        y = linear(x, weight, backends)
        gradients = torch.autograd.grad(y, (x, weight), upstream)

        torch.testing.assert_close(y, F.linear(x, weight))
        torch.testing.assert_close(gradients, expected)


@needs_onednn
def test_no_gradient_is_computed_for_an_input_that_needs_none():
    x, weight = seeded(4, 5), seeded(3, 5, seed=1).requires_grad_()

    linear(x, weight, MatmulBackends.all("onednn")).sum().backward()

    assert x.grad is None
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(3, 5))


@needs_onednn
def test_a_view_that_is_not_contiguous_goes_through_a_layer():
    x = seeded(5, 9).t().requires_grad_()
    weight = seeded(3, 5, seed=1).requires_grad_()

    y = linear(x, weight, MatmulBackends.all("onednn"))
    y.t().contiguous().sum().backward()

    torch.testing.assert_close(y, x @ weight.t())
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(3, 5))


def test_libraries_are_named_once_when_they_are_alike():
    assert str(MatmulBackends()) == "default"
    assert str(MatmulBackends.all("onednn")) == "onednn"
    assert str(MatmulBackends("default", "onednn", "default")) == "default/onednn/default"

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    matrix_muon_flops,
    muon_flops,
)
from yoked.plan.bandwidth_table import transfer_times
from yoked.train.model import gpt
from yoked.train.optim.muon import orthogonalize
from yoked.train.optim.param_buffers import ParamBuffers


@settings(max_examples=8, deadline=None)
@given(
    depth=st.integers(1, 5),
    head_dim=st.sampled_from([32, 64, 128]),
    vocab=st.integers(265, 3_000),
    tokens=st.sampled_from([64, 512]),
)
def test_parameters_are_those_of_the_model(
    depth: int, head_dim: int, vocab: int, tokens: int
) -> None:
    shape = ModelShape.from_depth(
        depth, head_dim=head_dim, vocab_size=vocab, sequence_len=tokens, window_pattern="L"
    )

    model = gpt.GPT(shape)

    assert count_parameters(shape).total == sum(p.numel() for p in model.parameters())
    tables = sum(table.weight.numel() for _, table in model.tables())
    assert count_parameters(shape).tables == tables
    assert shape.embedding_row_numbers == tables // shape.padded_vocab_size


@pytest.mark.parametrize("shape", [(256, 256), (256, 384), (256, 512), (1024, 256), (256, 1024)])
def test_muons_flops_are_those_that_run(shape: tuple[int, int]) -> None:
    with FlopCounterMode(display=False) as counter:
        orthogonalize(torch.randn(shape))

    assert counter.get_total_flops() == matrix_muon_flops(*shape)


def test_muon_of_a_model_is_that_of_its_matrices(anchor: ModelShape) -> None:
    buckets = ParamBuffers(gpt.GPT(anchor), [1.0]).buckets
    shapes = [bucket.shape for bucket in buckets for _ in bucket.names]

    assert muon_flops(anchor) == pytest.approx(sum(matrix_muon_flops(*s) for s in shapes), rel=1e-3)


def test_bytes_of_the_anchors_come_out(anchor: ModelShape) -> None:
    schemes = transfer_times(anchor, ranks=2, tokens_per_rank=1024)
    plain, exact, bf16, int8, _ = (each["bytes_per_step"] for each in schemes)
    assert plain == pytest.approx(4 * 36_700_290)
    rows = 454 * 768
    assert exact - 4 * rows == pytest.approx(46.1e6, rel=0.01)
    assert bf16 - 2 * rows == pytest.approx(23.1e6, rel=0.01)
    assert int8 - (1 + 4 / 256) * rows == pytest.approx(11.7e6, rel=0.01)


def test_the_seeds_760m_model_comes_out_as_in_the_seeds() -> None:
    # 760M parameters in bf16 over two ranks: "about 14 s/step on 1GbE" at 85% of the line.
    from yoked.costmodel.messages import ring_bytes

    assert 8 * ring_bytes(2 * 760e6, 2) / (0.85 * 1e9) == pytest.approx(14.3, abs=0.1)

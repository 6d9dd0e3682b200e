from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    muon_flops,
)
from yoked.plan.bandwidth_table import transfer_times
from yoked.train.model import gpt
from yoked.train.optim.param_buffers import matrix_muon_flops


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


def test_muon_costs_what_its_owners_are_chosen_by(anchor: ModelShape) -> None:
    shapes = 4 * ([(256, 256)] * 4 + [(1024, 256), (256, 1024)])
    assert muon_flops(anchor) == sum(matrix_muon_flops(shape) for shape in shapes)


def test_bytes_of_the_anchors_come_out(anchor: ModelShape) -> None:
    plain, exact, bf16, int8, _ = transfer_times(anchor, ranks=2, tokens_per_rank=1024)
    assert plain.sent_bytes == pytest.approx(4 * 36_700_290)
    rows = 454 * 768
    assert exact.sent_bytes - 4 * rows == pytest.approx(46.1e6, rel=0.01)
    assert bf16.sent_bytes - 2 * rows == pytest.approx(23.1e6, rel=0.01)
    assert int8.sent_bytes - 2 * rows == pytest.approx(11.7e6, rel=0.01)


def test_the_seeds_760m_model_comes_out_as_in_the_seeds() -> None:
    # 760M parameters in bf16 over two ranks: "about 14 s/step on 1GbE" at 85% of the line.
    from yoked.costmodel.messages import ring_bytes

    assert 8 * ring_bytes(2 * 760e6, 2) / (0.85 * 1e9) == pytest.approx(14.3, abs=0.1)

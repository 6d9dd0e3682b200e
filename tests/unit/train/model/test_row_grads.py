from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.train.model.row_grads import RowGrads, embedding, split_tables

VOCAB = 40
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)


def dense(gradients: RowGrads, table: str) -> torch.Tensor:
    whole = torch.zeros(VOCAB, gradients.widths[table])
    whole[gradients.rows] = gradients.tables[table]
    return whole


def of_ids(ids: torch.Tensor, widths: dict[str, int], vocab_size: int) -> RowGrads:
    return RowGrads(torch.unique(ids), widths, vocab_size)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(ids=IDS, micro_batches=st.integers(1, 3))
def test_row_gradients_equal_the_dense_gradient_of_autograd(ids, micro_batches):
    widths = {"a": 3, "b": 5}
    all_ids = torch.tensor(ids)
    gradients = of_ids(all_ids, widths, VOCAB)
    for name, width in widths.items():
        ours = seeded(VOCAB, width).requires_grad_()
        reference = ours.detach().clone().requires_grad_()
        for part in all_ids.chunk(micro_batches):
            upstream = seeded(len(part), width, seed=1)
            out = embedding(part[None], ours, name, gradients)
            out.backward(upstream[None])
            F.embedding(part, reference).backward(upstream)

            assert torch.equal(out[0], reference[part])

        assert ours.grad is None
        assert reference.grad is not None
        torch.testing.assert_close(dense(gradients, name), reference.grad)


@settings(deadline=None)
@given(parts=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=20), min_size=1, max_size=4))
def test_rows_of_several_ranks_add_up_to_the_dense_sum(parts):
    widths = {"a": 2, "b": 3}
    union = sorted({row for part in parts for row in part})
    total = RowGrads(torch.tensor(union, dtype=torch.int64), widths, VOCAB)
    expected = {name: torch.zeros(VOCAB, width) for name, width in widths.items()}
    for seed, part in enumerate(parts):
        rank = of_ids(torch.tensor(part, dtype=torch.int64), widths, VOCAB)
        rank.flat.copy_(seeded(rank.flat.numel(), seed=seed))
        total.add_rows(rank.rows, rank.flat)
        for name in widths:
            expected[name] += dense(rank, name)

    for name in widths:
        torch.testing.assert_close(dense(total, name), expected[name])


def test_a_rank_without_tokens_has_row_gradients_without_rows():
    gradients = of_ids(torch.empty(0, 16, dtype=torch.int64), {"a": 3, "b": 5}, VOCAB)

    assert {name: table.shape for name, table in gradients.tables.items()} == {
        "a": (0, 3),
        "b": (0, 5),
    }
    assert gradients.row_index.eq(-1).all()


def test_row_index_says_where_a_row_is_and_minus_one_elsewhere():
    gradients = of_ids(torch.tensor([[7, 3], [3, 9]]), {"a": 1}, 12)

    assert gradients.rows.tolist() == [3, 7, 9]
    assert gradients.row_index.tolist() == [-1, -1, -1, 0, -1, -1, -1, 1, -1, 2, -1, -1]


def test_all_tables_lie_in_one_buffer():
    flat = torch.arange(10.0)

    parts = split_tables(flat, 2, {"a": 2, "b": 3})

    assert parts["a"].tolist() == [[0, 1], [2, 3]]
    assert parts["b"].tolist() == [[4, 5, 6], [7, 8, 9]]
    parts["b"].zero_()
    assert flat.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 0, 0]


def test_gradients_of_a_bfloat16_table_are_summed_in_float32():
    ids = torch.zeros(300, dtype=torch.int64)
    table = torch.zeros(4, 1, dtype=torch.bfloat16, requires_grad=True)
    gradients = of_ids(ids, {"a": 1}, 4)

    embedding(ids, table, "a", gradients).backward(torch.ones(300, 1, dtype=torch.bfloat16))

    # In bfloat16 the sum would stop growing at 256.
    assert gradients.tables["a"].tolist() == [[300.0]]


def test_without_row_gradients_autograd_has_the_gradient():
    table = seeded(4, 2).requires_grad_()

    embedding(torch.tensor([1, 1]), table, "a", None).sum().backward()

    assert table.grad is not None
    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_a_token_outside_the_announced_rows_is_an_error():
    table = seeded(4, 2).requires_grad_()
    gradients = of_ids(torch.tensor([1]), {"a": 2}, 4)
    out = embedding(torch.tensor([2]), table, "a", gradients)

    with pytest.raises(IndexError):
        out.sum().backward()

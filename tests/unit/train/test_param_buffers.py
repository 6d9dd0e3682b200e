from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.costmodel.matrix_owners import ADAMW_FLOPS
from yoked.costmodel.model_shape import ModelShape, matrix_muon_flops
from yoked.train.model.gpt import GPT
from yoked.train.optim.param_buffers import ParamBuffers, assign_owners

CONFIG = ModelShape(
    sequence_len=8, vocab_size=64, n_layer=3, n_head=2, n_kv_head=2, n_embd=32, window_pattern="L"
)
SPEEDS = st.lists(st.floats(0, 100), min_size=1, max_size=6).filter(lambda s: max(s) > 1e-3)


def make_matrices(*counts: int) -> dict[str, tuple[int, int]]:
    """So many matrices of each of four shapes, by name."""
    shapes = [(64, 64), (256, 64), (64, 256), (4, 12)]
    return {
        f"{rows}x{columns}.{i}": (rows, columns)
        for (rows, columns), count in zip(shapes, counts, strict=True)
        for i in range(count)
    }


def make_buffers(speeds: list[float]) -> ParamBuffers:
    model = GPT(CONFIG)
    model.init_weights()
    return ParamBuffers(model, speeds)


def costs_by_rank(
    matrices: dict[str, tuple[int, int]], owners: dict[str, int], ranks: int
) -> list[int]:
    return [
        sum(matrix_muon_flops(*matrices[name]) for name, owner in owners.items() if owner == rank)
        for rank in range(ranks)
    ]


@settings(deadline=None)
@given(speeds=SPEEDS, counts=st.tuples(*[st.integers(0, 9)] * 4))
def test_every_matrix_has_one_owner_who_is_able(speeds, counts):
    matrices = make_matrices(*counts)

    owners = assign_owners(matrices, speeds)

    assert sorted(owners) == sorted(matrices)
    assert all(speeds[owner] > 0 for owner in owners.values())
    assert owners == assign_owners(matrices, list(speeds))


@settings(deadline=None)
@given(
    speeds=st.lists(st.floats(2, 4), min_size=1, max_size=6),
    counts=st.tuples(*[st.integers(0, 9)] * 4),
)
def test_no_rank_could_hand_its_smallest_matrix_to_one_that_is_done_earlier(speeds, counts):
    matrices = make_matrices(*counts)

    owners = assign_owners(matrices, speeds)

    # Greedy assignment: whoever is busiest would not have taken its last matrix otherwise.
    costs = costs_by_rank(matrices, owners, len(speeds))
    times = [cost / speed for cost, speed in zip(costs, speeds, strict=True)]
    busiest = max(range(len(speeds)), key=times.__getitem__)
    theirs = [
        matrix_muon_flops(*matrices[name]) for name, rank in owners.items() if rank == busiest
    ]
    for cost, speed in zip(costs, speeds, strict=True):
        assert not theirs or (cost + min(theirs)) / speed >= times[busiest] * (1 - 1e-9)


def test_equal_ranks_own_equally_much():
    matrices = make_matrices(16, 4, 4, 0)

    costs = costs_by_rank(matrices, assign_owners(matrices, [1.0, 1.0]), 2)

    assert costs[0] == costs[1]


def test_a_slow_rank_owns_less_where_all_have_much_to_update_besides():
    matrices = make_matrices(16, 4, 4, 0)
    total = sum(costs_by_rank(matrices, assign_owners(matrices, [1.0]), 1))

    alone, beside = (
        costs_by_rank(matrices, assign_owners(matrices, [3.0, 2.0], numbers), 2)
        for numbers in (0, 4 * total // ADAMW_FLOPS)
    )

    assert 0 < alone[1] < alone[0]
    assert beside == [total, 0]


@pytest.mark.parametrize("speeds", [[1.0], [1.0, 1.0], [3.0, 0.0, 1.0]])
def test_the_layout_leaves_the_weights_as_they_were(speeds):
    plain = GPT(CONFIG)
    plain.init_weights()

    buffers = make_buffers(speeds)

    state = buffers.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("speeds", [[1.0], [1.0, 1.0], [3.0, 0.0, 1.0]])
def test_stacks_fill_the_buffer_owner_by_owner(speeds):
    buffers = make_buffers(speeds)

    end = 0
    for bucket in buffers.buckets:
        assert bucket.offset == end
        end += bucket.numel
        for index, name in enumerate(bucket.names):
            assert buffers.owners[name] == bucket.owner
            assert torch.equal(bucket.view(buffers.matrices)[index], buffers.parameters[name])
    assert end == buffers.matrices.numel() == buffers.matrix_grads.numel()
    owners = [bucket.owner for bucket in buffers.buckets]
    assert owners == sorted(owners)


def test_a_backward_pass_fills_the_flat_buffers():
    buffers = make_buffers([1.0, 1.0])
    model = buffers.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)
    ids = torch.arange(16).view(2, 8)

    for _ in range(2):
        model.logits(model(ids)).square().sum().backward()

    twice = {n: g.clone() for n in buffers.owners if (g := buffers.gradient(n)) is not None}
    buffers.zero_grad()
    assert all(buffers.gradient(name).eq(0).all() for name in buffers.scalar_names)
    model.logits(model(ids)).square().sum().backward()
    for bucket in buffers.buckets:
        for index, name in enumerate(bucket.names):
            part = bucket.view(buffers.matrix_grads)[index]
            assert torch.equal(part, buffers.gradient(name))
            torch.testing.assert_close(2 * part, twice[name])
            assert part.ne(0).any(), name
    flat = torch.cat([buffers.gradient(name).flatten() for name in buffers.scalar_names])
    assert torch.equal(flat, buffers.scalar_grads)
    assert buffers.scalar_grads.ne(0).any()


def test_scalars_are_all_that_is_neither_table_nor_head_nor_matrix():
    buffers = make_buffers([1.0])

    assert set(buffers.scalar_names) == {
        "resid_lambdas",
        "x0_lambdas",
        "smear_gate.weight",
        "smear_lambda",
        "backout_lambda",
    }
    assert buffers.table_widths == {
        "transformer.wte.weight": 32,
        "value_embeds.0.weight": 32,
        "value_embeds.2.weight": 32,
    }
    assert buffers.gradient("lm_head.weight") is buffers.head_grad

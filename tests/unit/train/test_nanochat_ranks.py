"""nanochat's optimizer state in parts: one file for each rank."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.train.conftest import TinyState

from yoked.errors import CheckpointError
from yoked.train.nanochat_format import from_nanochat, to_nanochat
from yoked.train.nanochat_ranks import join_ranks, part_of_rank, uncuttable
from yoked.train.optim.groups import parameter_groups


def whole_of(state: TinyState) -> dict:
    return to_nanochat(state.optim, state.shapes, settings=state.settings)


def parts_of(state: TinyState, ranks: int) -> list[dict]:
    whole = whole_of(state)
    return [part_of_rank(whole, state.shapes, rank, ranks) for rank in range(ranks)]


def number_of(state: TinyState, name: str) -> int:
    """The number by which nanochat knows a parameter."""
    return [n for group in parameter_groups(state.shapes) for n in group.names].index(name)


@given(ranks=st.integers(1, 6), n_layer=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_parts_put_together_are_the_whole(ranks, n_layer, seed):
    state = TinyState(seed=seed, n_layer=n_layer, vocab=60)

    joined = join_ranks(parts_of(state, ranks), state.shapes)

    back = from_nanochat(joined, state.shapes)
    for kind in ("adamw", "muon"):
        assert back[kind].keys() == state.optim[kind].keys()
        for name, entry in state.optim[kind].items():
            for key, value in entry.items():
                torch.testing.assert_close(back[kind][name][key], value, rtol=0, atol=0)


def test_a_rank_has_its_rows_of_a_table_and_all_of_what_is_small(tiny_state):
    # 64 x 32 numbers are cut, 24 are not.
    state = tiny_state(vocab=64, width=32)

    parts = parts_of(state, 2)

    table, gate = (number_of(state, name) for name in ("lm_head.weight", "smear_gate.weight"))
    moment = state.optim["adamw"]["lm_head.weight"]["exp_avg"]
    assert torch.equal(parts[0]["state"][table]["exp_avg"], moment[:32])
    assert torch.equal(parts[1]["state"][table]["exp_avg"], moment[32:])
    assert [part["state"][table]["step"] for part in parts] == [7, 7]
    small = state.optim["adamw"]["smear_gate.weight"]["exp_avg_sq"]
    assert all(torch.equal(part["state"][gate]["exp_avg_sq"], small) for part in parts)
    assert parts[0]["param_groups"] == parts[1]["param_groups"]


def test_matrices_are_dealt_out_in_order_and_zeros_fill_up_the_last_part(tiny_state):
    # Three matrices among two ranks: two each, of which the last is none.
    state = tiny_state(n_layer=3)
    name = "transformer.h.0.mlp.c_fc.weight"
    momenta = [
        state.optim["muon"][f"transformer.h.{layer}.mlp.c_fc.weight"]["momentum_buffer"]
        for layer in range(3)
    ]

    first, second = (part["state"][number_of(state, name)] for part in parts_of(state, 2))

    assert torch.equal(first["momentum_buffer"], torch.stack(momenta[:2]))
    expected = torch.stack([momenta[2], torch.zeros_like(momenta[2])])
    assert torch.equal(second["momentum_buffer"], expected)
    assert second["second_momentum_buffer"].shape == (2, 128, 1)


def test_a_rank_without_a_matrix_of_a_group_has_zeros(tiny_state):
    state = tiny_state(n_layer=1)
    number = number_of(state, "transformer.h.0.mlp.c_proj.weight")

    last = parts_of(state, 2)[1]["state"][number]

    assert last["momentum_buffer"].shape == (1, 32, 128)
    assert not last["momentum_buffer"].any()


def test_a_part_is_written_without_the_rest(tiny_state):
    state = tiny_state(vocab=4096)

    sizes = []
    for part in (whole_of(state), parts_of(state, 4)[1]):
        file = io.BytesIO()
        torch.save(part, file)
        sizes.append(len(file.getvalue()))

    assert sizes[1] < sizes[0] / 3


@pytest.mark.parametrize(
    ("ranks", "found"), [(1, None), (2, None), (3, "lm_head.weight"), (64, None)]
)
def test_rows_that_cannot_be_shared_out_are_named(tiny_state, ranks, found):
    assert uncuttable(tiny_state(vocab=64).shapes, ranks) == found


@pytest.mark.parametrize("spoilt", [{}, {"state": {0: 1}}, {"state": {}}, {"state": []}])
def test_a_part_that_is_none_is_refused(tiny_state, spoilt):
    state = tiny_state()
    parts = parts_of(state, 2)
    parts[1] = spoilt

    with pytest.raises(CheckpointError, match="of 2 of nanochat's ranks"):
        join_ranks(parts, state.shapes)

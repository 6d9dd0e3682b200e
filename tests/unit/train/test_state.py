from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from yoked.errors import WeightsApartError
from yoked.train.comm.communicator import Communicator
from yoked.train.state import (
    Owned,
    Replicated,
    RowSharded,
    TrainState,
    checksum,
    fingerprint,
)

CPU = torch.device("cpu")
OnRanks = Callable[..., list[Any]]


# --- the same on all ranks


def replicas(comm: Communicator, *values: float) -> TrainState:
    """Two tensors; values: what to fill the second with, by rank."""
    state = TrainState(comm, CPU)
    state.register("wte", torch.ones(4, 3), Replicated())
    state.register("lm_head", torch.full((4, 3), values[comm.rank]), Replicated())
    return state


def test_ranks_that_hold_the_same_go_on(on_ranks: OnRanks) -> None:
    on_ranks(3, lambda comm: replicas(comm, 2, 2, 2).require_equal(["wte", "lm_head"], step=1))


@pytest.mark.parametrize(
    ("values", "blamed"),
    [
        ((2.0, 2.0, 3.0), (2,)),
        ((3.0, 2.0, 2.0), (0,)),
        ((2.0, 2.0, 2.0, 5.0, 6.0), (3, 4)),
        # No majority: all of them may be wrong.
        ((1.0, 2.0), (0, 1)),
        ((1.0, 1.0, 2.0, 2.0), (0, 1, 2, 3)),
    ],
)
def test_the_rank_that_differs_from_most_is_named_with_the_tensor(
    on_ranks: OnRanks,
    values: tuple[float, ...],
    blamed: tuple[int, ...],
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(WeightsApartError) as caught:
        on_ranks(
            len(values),
            lambda comm: replicas(comm, *values).require_equal(["wte", "lm_head"], step=7),
        )
    assert str(caught.value) == snapshot
    assert caught.value.of_ranks == blamed

    assert str(caught.value).startswith("after step 7, ")
    assert "first in lm_head" in str(caught.value)
    assert "--resume" in str(caught.value)


def test_rows_that_each_rank_has_alone_are_not_compared(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> None:
        state = replicas(comm, 1, 2)
        state.redistribute(["lm_head"], RowSharded((slice(2), slice(2, 4))))
        state.require_equal(["wte", "lm_head"], step=1)

    on_ranks(2, act)


def test_one_rank_alone_always_agrees() -> None:
    replicas(Communicator(), 1).require_equal(["wte", "lm_head"], step=1)


@settings(deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    index=st.integers(0, 34),
    bit=st.integers(0, 15),
)
def test_one_flipped_bit_changes_a_checksum(dtype, index, bit):
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(index)).to(dtype)
    other = tensor.clone()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flipped = torch.tensor(1).bitwise_left_shift(bit).to(integers)
    other.view(integers).view(-1)[index] ^= flipped

    assert checksum(tensor) != checksum(other)
    assert checksum(tensor) == checksum(tensor.clone())


def test_a_checksum_tells_zeros_of_unlike_sign_apart_and_takes_numbers_that_are_none():
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    assert checksum(torch.tensor(float("nan"))) == checksum(torch.tensor(float("nan")))


def test_a_checksum_does_not_depend_on_strides():
    tensor = torch.randn(4, 6)

    assert checksum(tensor.t().contiguous().t()) == checksum(tensor)


# --- the start


def test_every_rank_takes_over_what_rank_0_holds(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[Tensor, int, list[str]]:
        state, said = replicas(comm, 2, 3, 2), list[str]()
        state.broadcast(said.append, None, has_owned=False)
        found = state.entries["lm_head"].tensor
        assert found is not None
        return found, comm.bytes_sent, said

    for head, _, said in on_ranks(3, act):
        assert head.eq(2).all()
        assert len(said) == 1
        assert re.fullmatch(r"sending \d+ B of weights and optimizer state to all ranks", said[0])


def test_what_all_ranks_hold_alike_does_not_travel(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[int, list[str]]:
        state, said = replicas(comm, 2, 2), list[str]()
        state.broadcast(said.append, None, has_owned=False)
        return comm.bytes_sent, said

    # Two fingerprints of 16 bytes.
    assert on_ranks(2, act) == [(32, []), (32, [])]


def test_one_rank_alone_sends_nothing_at_its_start() -> None:
    replicas(Communicator(), 1).broadcast(pytest.fail, None, has_owned=False)


def owned(comm: Communicator) -> TrainState:
    """A tensor of each of three ranks, filled with its number."""
    state = TrainState(comm, CPU)
    for rank in range(3):
        tensor = torch.full((2, 2), float(rank)) if rank == comm.rank else None
        state.register(str(rank), tensor, Owned(rank), torch.empty(2, 2))
    return state


def test_each_owner_is_sent_what_rank_0_has_read(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[float, int]:
        state = owned(comm)
        read = {str(rank): torch.full((2, 2), 10.0 + rank) for rank in range(3)}
        state.broadcast(lambda _: None, read if comm.rank == 0 else None, has_owned=True)
        mine = state.entries[str(comm.rank)].tensor
        assert mine is not None
        return float(mine[0, 0]), comm.bytes_sent

    found = on_ranks(3, act)

    assert [value for value, _ in found] == [10, 11, 12]
    # To each of two others its own 16 bytes.
    assert found[0][1] == 32


@settings(deadline=None)
@given(index=st.integers(0, 5), other=st.integers(0, 5))
def test_a_fingerprint_tells_places_apart_which_a_checksum_does_not(index, other):
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    moved = tensor.clone()
    tensor.view(-1)[index], moved.view(-1)[other] = 1.0, 1.0

    assert torch.equal(fingerprint(tensor), fingerprint(moved)) == (index == other)
    assert checksum(tensor) == checksum(moved)
    assert torch.equal(fingerprint(torch.tensor(2.0)), fingerprint(torch.tensor(2.0)))


# --- rows that move, and a checkpoint


@st.composite
def bounds(draw: st.DrawFn, rows: int, ranks: int) -> RowSharded:
    """Any parts, empty ones too."""
    cuts = st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1)
    edges = [0, *sorted(draw(cuts)), rows]
    return RowSharded(tuple(slice(a, b) for a, b in itertools.pairwise(edges)))


def sharded(comm: Communicator, placements: Sequence[RowSharded]) -> tuple[TrainState, Tensor]:
    """Rows that are filled with their number by the rank whose they are first; others' are -1."""
    whole = torch.full((7, 2), -1.0)
    mine = placements[0].bounds[comm.rank]
    whole[mine] = torch.arange(7.0)[mine, None].expand(-1, 2)
    state = TrainState(comm, CPU)
    state.register("head", whole, Replicated())
    for placement in placements:
        state.redistribute(["head"], placement)
    return state, whole


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_rows_that_move_are_as_their_last_rank_had_them(on_ranks: OnRanks, data: Any) -> None:
    placements = [data.draw(bounds(7, 3)) for _ in range(3)]

    def act(comm: Communicator) -> None:
        _, whole = sharded(comm, placements)
        mine = placements[-1].bounds[comm.rank]
        assert torch.equal(whole[mine], torch.arange(7.0)[mine, None].expand(-1, 2))

    on_ranks(3, act)


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_gather_makes_them_whole_on_rank_0_and_an_all_gather_everywhere(
    on_ranks: OnRanks, data: Any
) -> None:
    placement = data.draw(bounds(7, 3))
    expected = torch.arange(7.0)[:, None].expand(-1, 2)

    def act(comm: Communicator) -> None:
        state, _ = sharded(comm, [placement])
        found = state.gather()
        assert (found is None) == (comm.rank != 0)
        assert found is None or torch.equal(found["head"], expected)
        state, whole = sharded(comm, [placement])
        state.all_gather("head")
        assert torch.equal(whole, expected)

    on_ranks(3, act)


def test_a_save_sends_what_rank_0_lacks_to_rank_0_alone(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[dict[str, float] | None, int]:
        found = owned(comm).gather()
        values = None if found is None else {n: float(t[0, 0]) for n, t in found.items()}
        return values, comm.bytes_sent

    # To every rank each of them would send 32.
    assert on_ranks(3, act) == [({"0": 0.0, "1": 1.0, "2": 2.0}, 0), (None, 16), (None, 16)]

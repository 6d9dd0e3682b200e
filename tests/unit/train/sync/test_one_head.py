"""The lm_head on one rank: the same gradient, nats and weights as one process's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.sync.tiny import Tiny, held_by, one_step, summed
from torch import Tensor

from yoked.train.sync.wire import Wire
from yoked.train.trainer import StepStats

TINY = Tiny(sequence_len=8, n_layer=2, rows=10)
TOKENS = TINY.rows * TINY.sequence_len


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, Tensor], float]:
    """What one process computes."""
    found, stats = one_step(TINY.trainer(Wire(), [1.0]))
    return found, stats.nats


@settings(deadline=None, max_examples=40)
@given(
    shares=st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any),
    batch=st.integers(1, 4),
    deferred=st.integers(1, 8),
    data=st.data(),
)
def test_any_rows_give_the_single_process_gradient(on_ranks, alone, shares, batch, deferred, data):
    head_rank = data.draw(st.integers(0, len(shares) - 1))

    def act(wire: Wire) -> tuple[dict[str, Tensor], StepStats]:
        weights = [float(share) for share in shares]
        trainer = TINY.trainer(wire, weights, batch=batch, head_rank=head_rank)
        trainer.evening = dataclasses.replace(trainer.evening, deferred=deferred)
        return one_step(trainer)

    by_rank = on_ranks(len(shares), act)
    total, (expected, nats) = summed(found for found, _ in by_rank), alone

    assert total.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (total[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, name
    assert sum(stats.nats for _, stats in by_rank) == pytest.approx(nats, rel=1e-6)
    for rank, (_, stats) in enumerate(by_rank):
        others = TOKENS - stats.tokens
        assert stats.extra_tokens == (others if rank == head_rank else -stats.tokens)


def after(wire: Wire, steps: int, **how) -> tuple[list[int], list[Tensor]]:
    """Checksums of all that a checkpoint has after some steps, and the weights."""
    moves = how.pop("moves", {})
    places = how.pop("places", {})
    trainer = TINY.trainer(wire, [3.0, 1.0, 1.0], **{"head_rank": 0, **how})
    for step in range(steps):
        if step in moves:
            trainer.reshare(moves[step])
        if step in places:
            trainer.place_head(places[step])
        trainer.step(step)
    return held_by(trainer)


def steps_alone(steps: int) -> list[Tensor]:
    """The weights of one process after some steps."""
    trainer = TINY.trainer(Wire(), [1.0])
    for step in range(steps):
        trainer.step(step)
    return [each.detach() for each in trainer.layout.parameters.values()]


def is_learned_alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Of a scalar all tokens cancel out but for rounding, which AdamW makes large."""
    return all(
        torch.allclose(one, other, rtol=1e-4, atol=2e-5)
        for one, other in zip(found, expected, strict=True)
        if other.dim() == 2
    )


def hold_the_same_and_repeat(on_ranks, steps: int, **how) -> None:
    """Assert it of three ranks, to the bit."""
    first, second = (
        on_ranks(3, lambda wire: after(wire, steps, batch=1, **how)[0]) for _ in range(2)
    )

    assert all(sums == first[0] for sums in first)
    assert first == second


@pytest.mark.parametrize("payload", ["exact", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_hold_the_same_and_repeat_to_the_bit(on_ranks, payload, dtype):
    hold_the_same_and_repeat(on_ranks, 4, payload=payload, dtype=dtype)


def test_rows_may_move_and_what_is_learned_stays(on_ranks):
    moves = {2: [range(1), range(1, 9), range(9, 10)], 4: [range(0), range(10), range(10, 10)]}

    moved = on_ranks(3, lambda wire: after(wire, 6, batch=1, moves=moves))

    assert all(sums == moved[0][0] for sums, _ in moved)
    assert is_learned_alike(moved[0][1], steps_alone(6))


@pytest.mark.parametrize("first", [None, 0])
def test_the_lm_head_may_move_and_what_is_learned_stays(on_ranks, first):
    places = {1: 1, 2: None, 4: 2, 5: 0}

    moved = on_ranks(3, lambda wire: after(wire, 7, batch=1, head_rank=first, places=places))

    assert all(sums == moved[0][0] for sums, _ in moved)
    assert is_learned_alike(moved[0][1], steps_alone(7))


@pytest.mark.parametrize("payload", ["exact", "int8"])
def test_ranks_hold_the_same_and_repeat_to_the_bit_wherever_it_goes(on_ranks, payload):
    places = {1: 2, 2: None, 4: 0}
    hold_the_same_and_repeat(on_ranks, 6, payload=payload, places=places)


def test_giving_it_back_sends_weight_and_moments_and_counts_as_sending(on_ranks):
    def given_back(wire: Wire) -> list[StepStats]:
        trainer = TINY.trainer(wire, [3.0, 2.0], head_rank=0)
        found = [trainer.step(0)]
        trainer.place_head(None)
        found += [trainer.step(step) for step in (1, 2)]
        trainer.settle()
        return found

    (_, moving, whole), _ = on_ranks(2, given_back)

    assert moving.bytes_sent == whole.bytes_sent + 3 * 64 * 32 * 4
    assert moving.extra_tokens == 0
    assert moving.comm_s > 0


def test_what_the_lm_head_takes_is_part_of_a_step(on_ranks):
    def step(wire: Wire) -> StepStats:
        trainer = TINY.trainer(wire, [3.0, 2.0], head_rank=0)
        stats = trainer.step(0)
        trainer.settle()
        return stats

    by_rank = on_ranks(2, step)

    assert 0 < by_rank[0].head_s < by_rank[0].compute_s
    assert by_rank[1].head_s < by_rank[0].head_s


def test_of_the_head_nothing_travels_but_hidden_states_their_gradient_and_nats(on_ranks):
    def sent(wire: Wire, head_rank: int | None) -> int:
        trainer = TINY.trainer(wire, [3.0, 2.0], head_rank=head_rank)
        trainer.step(0)
        before = wire.bytes_sent
        trainer.settle()
        return before

    whole, one = (on_ranks(2, lambda wire, where=where: sent(wire, where)) for where in (None, 0))

    head, given = 64 * 32 * 4, 4 * TINY.sequence_len * 32 * 4
    # Two micro-batches' nats go back, float64.
    assert [a - b for a, b in zip(whole, one, strict=True)] == [head - given - 16, head - given]

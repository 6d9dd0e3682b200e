"""A vocab-parallel lm_head: the same gradient, nats and weights as one process's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.sync.tiny import Tiny, held_by, one_step, summed
from torch import Tensor

from yoked.train.comm.communicator import Communicator
from yoked.train.lm_head.vocab_parallel import VOCAB_GRANULARITY, partition_vocab
from yoked.train.trainer import StepStats

TINY = Tiny(sequence_len=8, n_layer=2, rows=6)
TOKENS = TINY.rows * TINY.sequence_len


@given(
    groups=st.integers(1, 4096),
    work=st.lists(st.integers(0, 5000), min_size=1, max_size=8).filter(any),
)
def test_parts_are_consecutive_and_as_large_as_the_work(groups, work):
    parts = partition_vocab(groups * VOCAB_GRANULARITY, work).bounds

    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == groups * VOCAB_GRANULARITY
    for part, mine in zip(parts, work, strict=True):
        share = (part.stop - part.start) / VOCAB_GRANULARITY
        assert abs(share - groups * mine / sum(work)) < 1
        assert mine or part.start == part.stop


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, Tensor], float]:
    """What one process computes."""
    found, stats = one_step(TINY.trainer(Communicator(), [1.0]))
    return found, stats.nats


@settings(deadline=None, max_examples=25)
@given(
    shares=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    batch=st.integers(1, 7),
    data=st.data(),
)
def test_any_parts_give_the_single_process_gradient(on_ranks, alone, shares, batch, data):
    parts = st.lists(st.integers(0, 5), min_size=len(shares), max_size=len(shares))
    lm_head = data.draw(parts.filter(any))

    def act(comm: Communicator) -> tuple[dict[str, Tensor], StepStats]:
        trainer = TINY.trainer(comm, [float(s) for s in shares], batch=batch, vocab_parallel=True)
        trainer.assign(trainer.rows, lm_head)
        return one_step(trainer)

    by_rank = on_ranks(len(shares), act)
    total, (expected, nats) = summed(found for found, _ in by_rank), alone

    assert total.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (total[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, name
    assert sum(stats.nats for _, stats in by_rank) == pytest.approx(nats, rel=1e-6)
    assert sum(stats.tokens for _, stats in by_rank) == TOKENS


def after(
    comm: Communicator, shares: list[float], steps: int, **how
) -> tuple[list[int], list[Tensor]]:
    """Checksums of all that a checkpoint has after some steps, and the weights."""
    moves = how.pop("moves", {})
    trainer = TINY.trainer(comm, shares, vocab_parallel=True, **how)
    for step in range(steps):
        if step in moves:
            trainer.assign(*moves[step])
        trainer.step(step)
    return held_by(trainer)


@pytest.mark.parametrize("payload", ["exact", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shares", [[1.0, 1.0], [2.0, 0.0, 1.0]])
def test_all_ranks_hold_the_same_and_repeat_to_the_bit(on_ranks, payload, dtype, shares):
    first, second = (
        on_ranks(len(shares), lambda comm: after(comm, shares, 4, payload=payload, dtype=dtype)[0])
        for _ in range(2)
    )

    assert all(sums == first[0] for sums in first)
    assert first == second


def test_parts_that_move_take_weight_and_moments_along(on_ranks):
    moves = {
        2: ([4, 1, 1], [1.5, 1.0, 3.5]),
        4: ([1, 5, 0], [1, 5, 0]),
    }

    def run(moves) -> list[tuple[list[int], list[Tensor]]]:
        return on_ranks(3, lambda comm: after(comm, [1.0] * 3, 6, moves=moves))

    moved, stayed = run(moves), run({})
    alone = TINY.trainer(Communicator(), [1.0])
    for step in range(6):
        alone.step(step)
    alone.drain()

    assert all(sums == moved[0][0] for sums, _ in moved)
    names = list(alone.buffers.parameters)
    for name, one, other in zip(names, moved[0][1], stayed[0][1], strict=True):
        expected = alone.buffers.parameters[name].detach()
        # Of a scalar all tokens cancel out but for rounding, which AdamW makes large.
        if expected.dim() == 2:
            assert torch.allclose(one, other, rtol=1e-4, atol=2e-5), name
            assert torch.allclose(one, expected, rtol=1e-4, atol=2e-5), name


def test_nothing_of_the_head_travels_but_what_belongs_to_tokens(on_ranks):
    def sent(comm: Communicator, vocab_parallel: bool) -> int:
        trainer = TINY.trainer(comm, [1.0, 1.0], vocab_parallel=vocab_parallel)
        trainer.step(0)
        before = comm.bytes_sent
        trainer.drain()
        return before

    whole, vocab_parallel = (
        np.array(on_ranks(2, lambda comm, way=way: sent(comm, way))) for way in (False, True)
    )

    head = 64 * 32 * 4
    # Hidden states of its own tokens, gradients of the other's, and two sums of each.
    tokens = TOKENS * 32 * 4 + 2 * TOKENS * 4
    assert (whole - vocab_parallel == head - tokens).all()


def test_a_larger_part_is_work_for_others(on_ranks):
    def act(comm: Communicator) -> int:
        trainer = TINY.trainer(comm, [1.0, 1.0], vocab_parallel=True)
        trainer.assign(trainer.rows, [4.5, 1.5])
        extra = trainer.step(0).extra_tokens
        trainer.drain()
        return extra

    assert on_ranks(2, act) == [12, -12]

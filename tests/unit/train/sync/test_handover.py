"""lm_head work handed over between ranks: whose nats they are, and what travels."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.unit.train.sync.tiny import Tiny
from torch import Tensor

from yoked.timeline.evening import Handover
from yoked.train.sync.agreement import checksum
from yoked.train.sync.wire import HANDOVER_TAG, Pending, Wire
from yoked.train.trainer import StepStats

TINY = Tiny(sequence_len=32, n_layer=2, rows=12)


def run(on_ranks, shares, handovers, *, steps=1, dtype=torch.float32):
    """By rank: stats of the last step, and checksums of the weights after it."""

    def act(wire: Wire) -> tuple[StepStats, list[int]]:
        trainer = TINY.trainer(wire, shares, dtype=dtype)
        trainer.reshare(trainer.ranges, handovers)
        for step in range(steps):
            stats = trainer.step(step)
        trainer.settle()
        return stats, [checksum(parameter) for parameter in trainer.layout.parameters.values()]

    return on_ranks(len(shares), act)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shares", "handovers"),
    [
        ([1.0, 1.0], (Handover(1, 0, 48),)),
        ([5.0, 1.0], (Handover(1, 0, 16),)),
        ([2.0, 1.0, 1.0], (Handover(0, 1, 16), Handover(0, 2, 32))),
        ([2.0, 1.0, 1.0], (Handover(1, 0, 48), Handover(2, 0, 64))),
    ],
)
def test_each_rank_counts_the_nats_of_its_own_rows(on_ranks, shares, handovers, dtype):
    found = run(on_ranks, shares, handovers, dtype=dtype)

    exact = 1e-5 if dtype == torch.float32 else 1e-2
    for (ours, _), (theirs, _) in zip(found, run(on_ranks, shares, (), dtype=dtype), strict=True):
        assert ours.nats == pytest.approx(theirs.nats, rel=exact)
        assert ours.tokens == theirs.tokens
        assert theirs.extra_tokens == 0
    for rank, (stats, _) in enumerate(found):
        helped = sum(each.tokens for each in handovers if each.helper == rank)
        given = sum(each.tokens for each in handovers if each.source == rank)
        assert stats.extra_tokens == helped - given


def test_weights_stay_equal_on_all_ranks_and_repeat_to_the_bit(on_ranks):
    handovers = (Handover(0, 1, 16), Handover(0, 2, 32))

    first, second = (run(on_ranks, [2.0, 1.0, 1.0], handovers, steps=4) for _ in range(2))

    assert {tuple(sums) for _, sums in first} == {tuple(first[0][1])}
    assert [sums for _, sums in first] == [sums for _, sums in second]


def test_hidden_states_go_one_way_and_their_gradient_and_nats_the_other(on_ranks):
    def sizes(wire: Wire) -> list[tuple[int, ...]]:
        sent: list[tuple[int, ...]] = []
        send = wire.send

        def noting(tensor: Tensor, to: int, tag: int, what: str) -> Pending:
            if tag >= HANDOVER_TAG:
                sent.append(tuple(tensor.shape))
            return send(tensor, to, tag, what)

        wire.send = noting  # type: ignore[method-assign]
        trainer = TINY.trainer(wire, [1.0, 1.0])
        trainer.reshare(trainer.ranges, (Handover(1, 0, 48),))
        trainer.step(0)
        trainer.settle()
        return sent

    assert on_ranks(2, sizes) == [[(48, 32), ()], [(48, 32)]]


@pytest.mark.parametrize("early", [0, 1])
def test_within_a_step_ranks_report_and_the_late_one_hands_over(on_ranks, alone_sums, early):
    """One of two ranks says that it is late; what is summed is what one process computes."""

    def act(wire: Wire) -> tuple[int, Tensor, float]:
        trainer = TINY.trainer(wire, [1.0, 1.0], batch=1)
        trainer.evening = dataclasses.replace(trainer.evening, deferred=6 - early)
        trainer.handovers.live = True
        gather = wire.gather_all

        def late(tensor: Tensor, what: str, *, signal: bool = False) -> tuple[Tensor, Pending]:
            assert signal
            return gather(torch.tensor(1.0 + 0.5 * wire.rank).double(), what, signal=signal)

        wire.gather_all = late  # type: ignore[method-assign]
        stats = trainer.step(0)
        trainer.settle()
        return stats.extra_tokens, trainer.layout.head_grad.clone(), stats.nats

    (helped, gradient, nats), (given, _, other_nats) = on_ranks(2, act)

    expected_gradient, expected_nats = alone_sums
    # Three quarters of a row's tokens are the most.
    assert (helped, given) == (16, -16)
    assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()
    assert nats + other_nats == pytest.approx(expected_nats, rel=1e-5)


@pytest.fixture(scope="module")
def alone_sums() -> tuple[Tensor, float]:
    """The lm_head's gradient of the first step, and its nats, by one process."""
    trainer = TINY.trainer(Wire(), [1.0])
    nats = trainer.step(0).nats
    return trainer.layout.head_grad.clone(), nats


def test_other_rows_end_what_was_agreed(on_ranks):
    def act(wire: Wire) -> tuple[int, int]:
        trainer = TINY.trainer(wire, [1.0, 1.0])
        trainer.reshare(trainer.ranges, (Handover(1, 0, 48),))
        with_it = trainer.step(0).extra_tokens
        trainer.reshare([range(8), range(8, 12)])
        without = trainer.step(1).extra_tokens
        trainer.settle()
        return with_it, without

    assert on_ranks(2, act) == [(48, 0), (-48, 0)]

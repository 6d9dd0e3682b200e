"""Rows of tables whose steps are put off have the bits of rows that took each step in its turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.sync.tiny import Tiny
from torch import Tensor

from yoked.train import kernels
from yoked.train.comm.communicator import Communicator
from yoked.train.lm_head.vocab_parallel import SHARDED
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.adamw import adamw_update, coefficients
from yoked.train.optim.idle_rows import MOST_BEHIND, IdleRows, Table

pytestmark = pytest.mark.skipif(
    not kernels.kernels().available, reason=f"no compiled passes: {kernels.kernels().reason}"
)
BETAS, DECAY = (0.8, 0.995), 0.01


class Rows:
    """A table that is updated in every step, and one that is not."""

    def __init__(self, vocab: int, width: int, dtype: torch.dtype, seed: int) -> None:
        self.vocab, self.width = vocab, width
        self.draws = torch.Generator().manual_seed(seed)
        self.eager = [torch.randn(vocab, width, generator=self.draws).to(dtype)]
        self.eager += [torch.zeros_like(self.eager[0]) for _ in range(2)]
        self.put_off = [each.clone() for each in self.eager]
        self.idle = IdleRows({"table": Table(*self.put_off, group="group")})
        self.steps = 0

    def step(self, rows: list[int], scale: float) -> None:
        """rows: with a gradient."""
        self.steps += 1
        used = torch.tensor(sorted(set(rows)), dtype=torch.int64)
        gradients = RowGrads(used, {"table": self.width}, self.vocab)
        gradients.flat.copy_(torch.randn(gradients.flat.shape, generator=self.draws) * scale)
        scalars = coefficients(self.steps, 0.3 / self.steps, BETAS, DECAY)
        table, index = gradients.tables["table"], gradients.row_index
        p, first, second = self.eager
        adamw_update(p, table, first, second, scalars, index)
        self.idle.step({"group": scalars}, gradients)

    def same(self, rows: Tensor | slice = slice(None)) -> bool:
        """To the bit: a zero below zero is another one."""
        kind = {2: torch.int16, 4: torch.int32}[self.eager[0].element_size()]
        return all(
            torch.equal(one[rows].view(kind), other[rows].view(kind))
            for one, other in zip(self.eager, self.put_off, strict=True)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(deadline=None, max_examples=25)
@given(
    vocab=st.integers(1, 200),
    width=st.integers(1, 150),
    seed=st.integers(0, 99),
    used=st.lists(st.lists(st.integers(0, 199), max_size=4), max_size=90),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e5]),
)
def test_rows_that_were_put_off_have_the_same_bits(dtype, vocab, width, seed, used, scale):
    table = Rows(vocab, width, dtype, seed)
    for rows in used:
        table.step([row % vocab for row in rows], scale)
        read = torch.tensor(sorted({row % vocab for row in rows}), dtype=torch.int64)
        table.idle.catch_up([read])
        assert table.same(read)

    table.idle.catch_up_all()

    assert table.same()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_after_so_many_steps_that_momentum_is_below_normal_numbers(dtype):
    table = Rows(3, 40, dtype, seed=1)
    table.step([0, 1], 1e-20)
    for _ in range(500):
        table.step([0], 1.0)

    table.idle.catch_up_all()

    assert table.same()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_same_from_the_first_step_until_weights_stand_still(dtype, scale):
    table = Rows(60, 90, dtype, seed=2)
    draws = torch.Generator().manual_seed(3)
    for _ in range(300):
        used = torch.rand(3, generator=draws) ** 4 * table.vocab
        table.step(used.long().tolist(), scale)

    table.idle.catch_up_all()

    assert table.same()


def test_no_row_is_further_behind_than_its_turn_allows():
    table = Rows(1000, 1, torch.float32, seed=0)
    for _ in range(3 * MOST_BEHIND):
        table.step([], 1.0)
        assert int(table.idle._behind.max()) < MOST_BEHIND


def test_a_row_that_is_not_a_number_stays_so():
    table = Rows(2, 3, torch.float32, seed=0)
    for each in (table.eager[0], table.put_off[0]):
        each[1] = torch.nan
    for _ in range(5):
        table.step([0], 1.0)

    table.idle.catch_up_all()

    assert table.put_off[0][1].isnan().all()
    assert table.same(torch.tensor([0]))


TINY = Tiny(sequence_len=3, n_layer=2, rows=4)


def trained(
    comm: Communicator, shares: list[float], *, put_off: bool, vocab_parallel: bool
) -> list[Tensor]:
    """Weights and AdamW's moments after some steps, of which each uses a part of the rows."""
    trainer = TINY.trainer(comm, shares, batch=1, vocab_parallel=vocab_parallel)
    optimizer = trainer.optimizer
    if not put_off:
        optimizer._idle_rows = None
    for step in range(8):
        trainer.step(step)
    trainer.gather_weights()
    for name in SHARDED:
        trainer.state.all_gather(name)
    weights = [each.detach().clone() for each in trainer.buffers.parameters.values()]
    return [*weights, *optimizer.exp_avg.values(), *optimizer.exp_avg_sq.values()]


@pytest.mark.parametrize(
    ("shares", "vocab_parallel"),
    [([1.0], False), ([1.0, 1.0], False), ([3.0, 0.0, 1.0], False), ([3.0, 0.0, 1.0], True)],
)
def test_a_training_learns_the_same_to_the_bit(on_ranks, shares, vocab_parallel):
    def train(put_off: bool) -> list[list[Tensor]]:
        return on_ranks(
            len(shares),
            lambda comm: trained(comm, shares, put_off=put_off, vocab_parallel=vocab_parallel),
        )

    for ours, right in zip(train(True), train(False), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, right, strict=True))

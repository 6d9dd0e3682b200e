"""Embedding tables in host memory, beside the same tables on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.gpu import simulated
from tests.gpu.tiny import Rows, tiny_trainer

from yoked.train.trainer import Trainer

STEPS = 4


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that it has learned, in host memory."""
    found = trainer.state.gather()
    assert found is not None
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("again", [False, True])
def test_a_step_of_one_micro_batch_has_the_bits_of_tables_on_the_device(
    sim: torch.device, dtype: torch.dtype, again: bool
) -> None:
    with simulated.entered():
        here, there = (
            tiny_trainer(sim, dtype, batch=8, tables_on_host=on_host) for on_host in (False, True)
        )
        there.model.checkpoints_blocks = again
        assert there.model.tables_device.type == "cpu"
        for step in range(STEPS):
            assert here.step(step).nats == there.step(step).nats
            # Every second time some rows have steps to catch up with.
            if step % 2:
                here.drain()
                there.drain()
                ours, theirs = state(here), state(there)
                unlike = [name for name in ours if not torch.equal(ours[name], theirs[name])]
                assert unlike == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_micro_batches_learn_the_same(device: torch.device, dtype: torch.dtype) -> None:
    rel = 1e-6 if dtype == torch.float32 else 1e-3
    # 5 rows: the last micro-batch is a smaller one.
    here, there = (
        tiny_trainer(device, dtype, rows=[5], tables_on_host=on_host) for on_host in (False, True)
    )

    for step in range(STEPS):
        assert there.step(step).nats == pytest.approx(here.step(step).nats, rel=rel)


def test_a_step_sends_the_rows_that_it_uses_and_not_the_tables(sim: torch.device) -> None:
    with simulated.entered():
        trainer = tiny_trainer(sim, rows=[8], batch=2, tables_on_host=True)
        trainer.step(0)
        with simulated.counted() as tally:
            trainer.step(1)

    rows = Rows().batch(8, 16)[:, :-1]
    used = sum(len(np.unique(rows[i : i + 2])) for i in range(0, 8, 2))
    row_bytes = 4 * sum(trainer.buffers.table_widths.values())
    assert sum(tally.to_host) == pytest.approx(used * row_bytes, rel=0.01)
    # And the places of the tokens, their targets, and AdamW's numbers.
    assert sum(tally.to_device) == pytest.approx(used * row_bytes, rel=0.05)

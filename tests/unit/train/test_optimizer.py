from __future__ import annotations

import copy

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from yoked.costmodel.model_shape import ModelShape
from yoked.errors import CheckpointError
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.adamw import adamw_update, coefficients
from yoked.train.optim.groups import group_settings
from yoked.train.optim.muon import MuonStep, muon_update
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers, ReplicatedGrads
from yoked.train.optim.schedule import Schedule
from yoked.train.state import TrainState

CONFIG = ModelShape(
    sequence_len=8, vocab_size=64, n_layer=2, n_head=2, n_kv_head=2, n_embd=48, window_pattern="L"
)
STEPS = 100
# n_embd 48: rates of tables and head are times (48 / 768)^-0.5 = 4; the batch scale is 0.5.
ADAMW = {
    "lm_head.weight": (0.008 * 2, (0.8, 0.96), 0.01),
    "transformer.wte.weight": (0.3 * 2, (0.8, 0.995), 0.001),
    "value_embeds.1.weight": (0.15 * 2, (0.8, 0.995), 0.01),
    "resid_lambdas": (0.005 * 0.5, (0.8, 0.95), 0.05),
    "x0_lambdas": (0.5 * 0.5, (0.96, 0.95), 0.0),
    "smear_gate.weight": (0.2, (0.8, 0.95), 0.0),
    "smear_lambda": (0.2, (0.8, 0.95), 0.0),
    "backout_lambda": (0.2, (0.8, 0.95), 0.0),
}


def make_optimizer(rank: int = 0, speeds: tuple[float, ...] = (1.0,)) -> MuonAdamW:
    model = GPT(CONFIG)
    model.init_weights()
    settings = group_settings(
        TrainConfig(), CONFIG.n_embd, batch_lr_scale=0.5, muon_weight_decay=0.1
    )
    return MuonAdamW(ParamBuffers(model, speeds), settings, Schedule(STEPS), rank)


def fill_gradients(optimizer: MuonAdamW, step: int) -> RowGrads:
    """Random gradients that depend on the step and the parameter's name alone."""
    buffers = optimizer.buffers
    generator = torch.Generator().manual_seed(step)
    for name in sorted(buffers.parameters):
        if name not in buffers.table_widths:
            gradient = buffers.gradient(name)
            gradient.copy_(torch.randn(gradient.shape, generator=generator))
    rows = RowGrads(torch.tensor([3, 9, 40]), buffers.table_widths, CONFIG.padded_vocab_size)
    rows.flat.copy_(torch.randn(rows.flat.shape, generator=generator))
    return rows


def update(optimizer: MuonAdamW, step: int, rows: RowGrads) -> None:
    for bucket in optimizer.owned:
        optimizer.step_bucket(step, optimizer.buffers.update_of(bucket))
    buffers = optimizer.buffers
    optimizer.step_head(step, buffers.head_grad)
    optimizer.step_adamw(step, ReplicatedGrads(buffers.scalar_grads, rows))


def take_steps(optimizer: MuonAdamW, steps: range) -> None:
    for step in steps:
        rows = fill_gradients(optimizer, step)
        update(optimizer, step, rows)


def weights(optimizer: MuonAdamW) -> dict[str, Tensor]:
    optimizer.catch_up_all()
    return {name: p.detach().clone() for name, p in optimizer.buffers.parameters.items()}


def whole_state(*optimizers: MuonAdamW) -> dict:
    whole: dict[str, Tensor] = {}
    for one in optimizers:
        one.catch_up_all()
        state = TrainState(Communicator(), torch.device("cpu"))
        one.register(state)
        whole |= {n: e.tensor for n, e in state.entries.items() if e.tensor is not None}
    return copy.deepcopy(optimizers[0].state_dict(whole))


def test_each_parameter_is_updated_by_its_own_rule_and_rates():
    optimizer = make_optimizer()
    expected = weights(optimizer)
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = {name: torch.zeros_like(p) for name, p in expected.items()}
    for name in optimizer.buffers.owners:
        rows, columns = expected[name].shape
        second[name] = torch.zeros((1, rows, 1) if rows >= columns else (1, 1, columns))

    for step in range(3):
        tables = fill_gradients(optimizer, step)
        warm_up = (step + 1) / 40
        for name, (lr, betas, decay) in ADAMW.items():
            table = tables.tables.get(name)
            gradient = optimizer.buffers.gradient(name) if table is None else table
            row_index = None if table is None else tables.row_index
            scalars = coefficients(step + 1, lr * warm_up, betas, decay)
            adamw_update(expected[name], gradient, first[name], second[name], scalars, row_index)
        for name in optimizer.buffers.owners:
            muon_update(
                expected[name][None],
                optimizer.buffers.gradient(name)[None],
                first[name][None],
                second[name],
                MuonStep(
                    lr=0.02 * 0.5 * warm_up,
                    momentum=0.85 + 0.12 * step / 400,
                    weight_decay=0.1 * optimizer.schedule.weight_decay(step),
                ),
            )
        update(optimizer, step, tables)

    assert set(expected) == {*ADAMW, *optimizer.buffers.owners}
    for name, value in weights(optimizer).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_parameters_stay_views_of_the_buffers_after_a_step():
    optimizer = make_optimizer()
    buffers = optimizer.buffers

    take_steps(optimizer, range(2))

    for bucket in buffers.buckets:
        for index, name in enumerate(bucket.names):
            ours, flat = buffers.parameters[name], bucket.view(buffers.matrices)[index]
            assert ours.data_ptr() == flat.data_ptr()
            assert (
                buffers.gradient(name).data_ptr()
                == bucket.view(buffers.matrix_grads)[index].data_ptr()
            )
    start = buffers.scalar_grads.data_ptr()
    size = buffers.scalar_grads.nbytes
    assert all(start <= buffers.gradient(n).data_ptr() < start + size for n in buffers.scalar_names)


def test_two_owners_compute_together_what_one_computes_alone():
    alone = make_optimizer()
    ranks = [make_optimizer(rank, (2.0, 1.0)) for rank in (0, 1)]

    for optimizer in (alone, *ranks):
        take_steps(optimizer, range(3))

    expected = weights(alone)
    owned = [{n for bucket in one.owned for n in bucket.names} for one in ranks]
    assert owned[0].isdisjoint(owned[1])
    assert owned[0] | owned[1] == set(alone.buffers.owners)
    for rank, names in enumerate(owned):
        ours = weights(ranks[rank])
        for name in [*names, *ADAMW]:
            torch.testing.assert_close(ours[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_a_matrix_of_another_owner_is_left_alone():
    optimizer = make_optimizer(1, (1.0, 1.0))
    before = weights(optimizer)

    take_steps(optimizer, range(1))

    for name, owner in optimizer.buffers.owners.items():
        assert torch.equal(before[name], optimizer.buffers.parameters[name]) == (owner != 1)


def test_a_saved_state_goes_on_bit_for_bit():
    unbroken = make_optimizer()
    take_steps(unbroken, range(3))
    state, kept = whole_state(unbroken), weights(unbroken)
    take_steps(unbroken, range(3, 6))
    resumed = make_optimizer()
    with torch.no_grad():
        for name, parameter in resumed.buffers.parameters.items():
            parameter.copy_(kept[name])

    resumed.load(state)
    take_steps(resumed, range(3, 6))

    final = weights(resumed)
    assert all(torch.equal(value, final[name]) for name, value in weights(unbroken).items())


def test_a_state_is_taken_over_onto_another_number_of_ranks():
    alone = make_optimizer()
    take_steps(alone, range(2))
    state = whole_state(alone)
    ranks = [make_optimizer(rank, (1.0, 0.0, 1.0)) for rank in (0, 1, 2)]

    for optimizer in ranks:
        optimizer.load(state)

    again = whole_state(*ranks)
    del state["settings"], again["settings"]
    assert again["muon"].keys() == state["muon"].keys()
    for kind, entries in state.items():
        for name, entry in entries.items():
            for key, value in entry.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(again[kind][name][key]))


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_a_state_of_another_model_is_refused_with_the_way_out(damage, snapshot: SnapshotAssertion):
    optimizer = make_optimizer()
    state = whole_state(optimizer)
    if damage == "missing":
        del state["muon"]["transformer.h.0.attn.c_q.weight"]
    else:
        state["adamw"]["lm_head.weight"]["exp_avg"] = torch.zeros(3, 3)

    with pytest.raises(CheckpointError) as caught:
        optimizer.load(state)
    assert str(caught.value) == snapshot

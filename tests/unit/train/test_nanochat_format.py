import copy
import importlib
import os
import sys
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.train.conftest import TinyState

from yoked.errors import CheckpointError
from yoked.train.nanochat_format import checkpoint_meta, from_nanochat, to_nanochat
from yoked.train.optim.groups import parameter_groups

CHECKOUT = os.environ.get("NANOCHAT_CHECKOUT")


@given(
    n_layer=st.integers(1, 5),
    n_kv_head=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**16),
)
def test_there_and_back_gives_the_same_optimizer_state(n_layer, n_kv_head, seed):
    state = TinyState(seed=seed, n_layer=n_layer, n_head=4, n_kv_head=n_kv_head)

    there = to_nanochat(state.optim, state.shapes, settings=state.settings)
    back = from_nanochat(there, state.shapes)

    assert _equal(back, state.optim)
    numbers = [i for group in there["param_groups"] for i in group["params"]]
    assert numbers == list(range(len(state.shapes))), "every parameter has one number"


def test_parameters_are_numbered_group_by_group_and_matrices_by_shape(tiny_state):
    shapes = tiny_state(n_layer=3).shapes

    groups = [group.names for group in parameter_groups(shapes)]

    assert groups[:6] == [
        ("lm_head.weight",),
        ("transformer.wte.weight",),
        ("value_embeds.0.weight", "value_embeds.2.weight"),
        ("resid_lambdas",),
        ("x0_lambdas",),
        ("smear_gate.weight", "smear_lambda", "backout_lambda"),
    ]
    gates, square, wide, tall = groups[6:]
    assert gates == ("transformer.h.0.attn.ve_gate.weight", "transformer.h.2.attn.ve_gate.weight")
    assert square[:5] == (
        "transformer.h.0.attn.c_q.weight",
        "transformer.h.0.attn.c_k.weight",
        "transformer.h.0.attn.c_v.weight",
        "transformer.h.0.attn.c_proj.weight",
        "transformer.h.1.attn.c_q.weight",
    )
    assert all(name.endswith("mlp.c_proj.weight") for name in wide)
    assert all(name.endswith("mlp.c_fc.weight") for name in tall)


def test_layers_are_ordered_by_number_not_by_text(tiny_state):
    shapes = tiny_state(n_layer=12).shapes

    tables = parameter_groups(shapes)[2].names

    assert tables[-2:] == ("value_embeds.9.weight", "value_embeds.11.weight")


def test_a_parameter_that_nanochat_does_not_have_is_named(tiny_state, snapshot: SnapshotAssertion):
    shapes = {**tiny_state().shapes, "transformer.h.0.attn.c_magic.weight": (2, 2)}

    with pytest.raises(CheckpointError) as caught:
        parameter_groups(shapes)
    assert str(caught.value) == snapshot


def test_the_part_of_one_of_several_ranks_is_refused(tiny_state, snapshot: SnapshotAssertion):
    state = tiny_state()
    theirs = to_nanochat(state.optim, state.shapes, settings=state.settings)
    theirs["state"][0]["exp_avg"] = theirs["state"][0]["exp_avg"][:32]

    with pytest.raises(CheckpointError) as caught:
        from_nanochat(theirs, state.shapes)
    assert str(caught.value) == snapshot


def test_the_optimizer_state_of_another_model_is_refused(tiny_state, snapshot: SnapshotAssertion):
    theirs = tiny_state(n_layer=3)
    saved = to_nanochat(theirs.optim, theirs.shapes, settings=theirs.settings)

    with pytest.raises(CheckpointError) as caught:
        from_nanochat(saved, tiny_state(n_layer=2).shapes)
    assert str(caught.value) == snapshot


def test_something_that_is_no_optimizer_state_is_refused(tiny_state, snapshot: SnapshotAssertion):
    with pytest.raises(CheckpointError) as caught:
        from_nanochat({"weights": 1}, tiny_state().shapes)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("step", [float("inf"), torch.zeros(2), "last"])
def test_a_step_that_is_no_number_is_refused(tiny_state, step, snapshot: SnapshotAssertion):
    state = tiny_state()
    theirs = to_nanochat(state.optim, state.shapes, settings=state.settings)
    theirs["state"][0]["step"] = step

    with pytest.raises(CheckpointError) as caught:
        from_nanochat(theirs, state.shapes)
    assert str(caught.value) == snapshot


def test_the_meta_file_has_every_key_that_nanochat_resumes_with():
    meta = checkpoint_meta(
        model_config={"n_layer": 2},
        user_config={"depth": 2},
        device_batch_size=4,
        max_seq_len=16,
        total_batch_size=64,
        val_bpb=None,
    )

    # The store adds "step".
    assert set(meta) == {
        "val_bpb",
        "model_config",
        "user_config",
        "device_batch_size",
        "max_seq_len",
        "total_batch_size",
        "dataloader_state_dict",
        "loop_state",
    }
    assert set(meta["dataloader_state_dict"]) == {"pq_idx", "rg_idx", "epoch"}
    assert set(meta["loop_state"]) == {
        "min_val_bpb",
        "smooth_train_loss",
        "total_training_time",
    }


@pytest.fixture
def nanochat(monkeypatch):
    """The modules of a nanochat checkout, with stand-ins for what they import but do not need."""
    if not CHECKOUT:
        pytest.skip("NANOCHAT_CHECKOUT names no checkout of nanochat")
    monkeypatch.syspath_prepend(CHECKOUT)
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    with torch.compiler.set_stance("force_eager"):
        yield importlib.import_module("nanochat.gpt")
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanochat"]:
        del sys.modules[name]


@pytest.fixture
def theirs(nanochat):
    """A tiny model of nanochat's and its optimizer after two steps on random gradients."""
    torch.manual_seed(0)
    model = nanochat.GPT(
        nanochat.GPTConfig(
            sequence_len=16, vocab_size=64, n_layer=3, n_head=2, n_kv_head=1, n_embd=32
        )
    )
    model.init_weights()
    optimizer = model.setup_optimizer()
    _step(model, optimizer, seeds=(1, 2))
    return model, optimizer


@pytest.mark.filterwarnings("ignore")  # nanochat's own
def test_the_real_nanochat_optimizer_goes_on_from_our_state_as_from_its_own(nanochat, theirs):
    model, optimizer = theirs
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    weights = {name: p.clone() for name, p in model.state_dict().items()}
    # A copy, because the conversions share tensors and the first optimizer steps on.
    ours = copy.deepcopy(from_nanochat(optimizer.state_dict(), shapes))
    theirs_again = to_nanochat(ours, shapes, settings=_settings_of(optimizer, shapes))
    twin = nanochat.GPT(model.config)
    twin.init_weights()
    twin.load_state_dict(weights)
    twin_optimizer = twin.setup_optimizer()

    twin_optimizer.load_state_dict(theirs_again)
    _step(model, optimizer, seeds=(3,))
    _step(twin, twin_optimizer, seeds=(3,))

    assert _equal(theirs_again["param_groups"], optimizer.state_dict()["param_groups"])
    assert _equal(dict(twin.state_dict()), dict(model.state_dict()))


@pytest.mark.filterwarnings("ignore")  # nanochat's own
def test_each_parameter_of_the_real_optimizer_gets_the_name_it_has_in_the_model(theirs):
    model, optimizer = theirs
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}

    named = [
        tuple(name_of[id(parameter)] for parameter in group["params"])
        for group in optimizer.param_groups
    ]

    assert named == [group.names for group in parameter_groups(shapes)]


@pytest.mark.filterwarnings("ignore")  # nanochat's own
def test_our_settings_are_those_that_nanochat_sets(nanochat, tiny_state):
    # The learning rates that nanochat's trainer hands down by default, at the reference batch.
    model = nanochat.GPT(
        nanochat.GPTConfig(sequence_len=16, n_layer=1, n_head=2, n_kv_head=2, n_embd=32)
    )
    optimizer = model.setup_optimizer(
        unembedding_lr=0.008, embedding_lr=0.3, matrix_lr=0.02, weight_decay=0.28, scalar_lr=0.5
    )
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}

    assert _settings_of(optimizer, shapes) == tiny_state(width=32).settings


def _step(model, optimizer, seeds):
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


def _settings_of(optimizer, shapes):
    settings = {}
    for group, theirs in zip(parameter_groups(shapes), optimizer.param_groups, strict=True):
        settings[group.name] = {k: v for k, v in theirs.items() if k not in ("params", "kind")}
    return settings


def _equal(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right

from __future__ import annotations

import math

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import (
    AdamWGroup,
    Groups,
    LearningRates,
    build_groups,
    group_settings,
)


def groups_for(width: int, scale: float, rates: LearningRates | None = None) -> Groups:
    config = ModelShape(
        sequence_len=16, vocab_size=64, n_layer=3, n_head=2, n_kv_head=2, n_embd=width
    )
    return build_groups(
        GPT(config), rates or LearningRates(), batch_lr_scale=scale, muon_weight_decay=0.1
    )


def test_adamw_has_the_settings_of_nanochat_at_the_reference_size():
    value_embeds = ("value_embeds.0.weight", "value_embeds.2.weight")
    smear = ("smear_gate.weight", "smear_lambda", "backout_lambda")
    assert groups_for(768, 1.0).adamw == (
        AdamWGroup("lm_head", ("lm_head.weight",), 0.008, (0.8, 0.96), 0.01),
        AdamWGroup("wte", ("transformer.wte.weight",), 0.3, (0.8, 0.995), 0.001),
        AdamWGroup("value_embeds", value_embeds, 0.15, (0.8, 0.995), 0.01),
        AdamWGroup("resid_lambdas", ("resid_lambdas",), 0.005, (0.8, 0.95), 0.05),
        AdamWGroup("x0_lambdas", ("x0_lambdas",), 0.5, (0.96, 0.95), 0.0),
        AdamWGroup("smear", smear, 0.2, (0.8, 0.95), 0.0),
    )


def test_rates_of_tables_and_head_shrink_with_the_root_of_the_width():
    rates = [group.lr for group in groups_for(192, 1.0).adamw]

    assert rates == pytest.approx([0.016, 0.6, 0.3, 0.005, 0.5, 0.2])


def test_every_rate_but_the_fixed_one_is_scaled_by_the_batch():
    small, full = groups_for(768, 0.25), groups_for(768, 1.0)

    ratios = [a.lr / b.lr for a, b in zip(small.adamw, full.adamw, strict=True)]
    assert ratios == pytest.approx([0.25] * 5 + [1.0])
    assert {group.lr for group in small.muon} == {0.02 * 0.25}


def test_muon_has_the_matrices_of_the_layers_by_shape():
    muon = {group.shape: group for group in groups_for(32, 1.0).muon}

    attention = ["c_q", "c_k", "c_v", "c_proj"]
    assert muon[32, 32].names == tuple(
        f"transformer.h.{i}.attn.{name}.weight" for i in range(3) for name in attention
    )
    assert muon[128, 32].names == tuple(f"transformer.h.{i}.mlp.c_fc.weight" for i in range(3))
    assert muon[32, 128].names == tuple(f"transformer.h.{i}.mlp.c_proj.weight" for i in range(3))
    assert muon[2, 12].names == tuple(f"transformer.h.{i}.attn.ve_gate.weight" for i in (0, 2))
    assert len(muon) == 4
    assert {group.weight_decay for group in muon.values()} == {0.1}


def test_flags_set_the_base_rates():
    rates = LearningRates(embedding=1.0, unembedding=2.0, matrix=3.0, scalar=4.0)

    groups = groups_for(768, 1.0, rates)

    assert [group.lr for group in groups.adamw] == pytest.approx([2.0, 1.0, 0.5, 0.04, 4.0, 0.2])
    assert groups.muon[0].lr == 3.0


def test_rates_are_finite_for_every_width():
    assert all(
        math.isfinite(g.lr) and g.lr > 0 for w in (32, 64) for g in groups_for(w, 1e-3).adamw
    )


def test_settings_for_nanochat_follow_the_flags_and_not_its_defaults():
    groups = groups_for(768, 0.5, LearningRates(matrix=0.03, embedding=0.2))

    settings = group_settings(groups)

    muon = settings["muon"]
    assert (muon["lr"], muon["initial_lr"], muon["weight_decay"]) == (0.015, 0.015, 0.1)
    assert settings["wte"]["initial_lr"] == 2 * settings["value_embeds"]["initial_lr"]
    assert settings.keys() == {*(group.name for group in groups.adamw), "muon"}

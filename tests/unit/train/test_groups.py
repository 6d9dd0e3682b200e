from __future__ import annotations

import math
from typing import Any

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.train.config import TrainConfig
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import MUON, GroupSettings, group_settings, parameter_groups


def settings_for(width: int, scale: float, **rates: float) -> GroupSettings:
    config = TrainConfig(**rates)  # type: ignore[arg-type]
    return group_settings(config, width, batch_lr_scale=scale, muon_weight_decay=0.1)


def adamw_of(settings: GroupSettings, *keys: str) -> dict[str, tuple[Any, ...]]:
    """Of every group but Muon's."""
    return {
        name: tuple(each[key] for key in keys) for name, each in settings.items() if name != MUON
    }


def test_adamw_has_the_settings_of_nanochat_at_the_reference_size():
    assert adamw_of(settings_for(768, 1.0), "lr", "betas", "weight_decay") == {
        "lm_head": (0.008, (0.8, 0.96), 0.01),
        "wte": (0.3, (0.8, 0.995), 0.001),
        "value_embeds": (0.15, (0.8, 0.995), 0.01),
        "resid_lambdas": (0.005, (0.8, 0.95), 0.05),
        "x0_lambdas": (0.5, (0.96, 0.95), 0.0),
        "smear": (0.2, (0.8, 0.95), 0.0),
    }


def rates_of(settings: GroupSettings) -> list[float]:
    """AdamW's, in the order of groups."""
    return [lr for (lr,) in adamw_of(settings, "lr").values()]


def test_rates_of_tables_and_head_shrink_with_the_root_of_the_width():
    assert rates_of(settings_for(192, 1.0)) == pytest.approx([0.016, 0.6, 0.3, 0.005, 0.5, 0.2])


def test_every_rate_but_the_fixed_one_is_scaled_by_the_batch():
    small, full = settings_for(768, 0.25), settings_for(768, 1.0)

    ratios = [a / b for a, b in zip(rates_of(small), rates_of(full), strict=True)]
    assert ratios == pytest.approx([0.25] * 5 + [1.0])
    assert small[MUON]["lr"] == 0.02 * 0.25


def test_muon_has_the_matrices_of_the_layers_by_shape():
    config = ModelShape(sequence_len=16, vocab_size=64, n_layer=3, n_head=2, n_kv_head=2, n_embd=32)
    shapes = {name: tuple(each.shape) for name, each in GPT(config).named_parameters()}

    muon = {
        shapes[group.names[0]]: group.names
        for group in parameter_groups(shapes)
        if group.kind == MUON
    }

    attention = ["c_q", "c_k", "c_v", "c_proj"]
    assert muon[32, 32] == tuple(
        f"transformer.h.{i}.attn.{name}.weight" for i in range(3) for name in attention
    )
    assert muon[128, 32] == tuple(f"transformer.h.{i}.mlp.c_fc.weight" for i in range(3))
    assert muon[32, 128] == tuple(f"transformer.h.{i}.mlp.c_proj.weight" for i in range(3))
    assert muon[2, 12] == tuple(f"transformer.h.{i}.attn.ve_gate.weight" for i in (0, 2))
    assert len(muon) == 4


def test_flags_set_the_base_rates():
    rates = {"embedding_lr": 1.0, "unembedding_lr": 2.0, "matrix_lr": 3.0, "scalar_lr": 4.0}

    settings = settings_for(768, 1.0, **rates)

    assert rates_of(settings) == pytest.approx([2.0, 1.0, 0.5, 0.04, 4.0, 0.2])
    assert settings[MUON]["lr"] == 3.0


def test_rates_are_finite_for_every_width():
    rates = [lr for width in (32, 64) for lr in rates_of(settings_for(width, 1e-3))]

    assert all(math.isfinite(lr) and lr > 0 for lr in rates)


def test_settings_for_nanochat_follow_the_flags_and_not_its_defaults():
    settings = settings_for(768, 0.5, matrix_lr=0.03, embedding_lr=0.2)

    muon = settings[MUON]
    assert (muon["lr"], muon["initial_lr"], muon["weight_decay"]) == (0.015, 0.015, 0.1)
    assert settings["wte"]["initial_lr"] == 2 * settings["value_embeds"]["initial_lr"]

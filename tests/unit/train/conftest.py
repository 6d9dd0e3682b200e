"""Fixtures of the trainer's tests: a tiny model's state, and both kinds of passes."""

from __future__ import annotations

import pytest
import torch
from tests.unit.train.comm.in_memory import on_ranks
from torch import Tensor

from yoked.train import kernels
from yoked.train.config import TrainConfig
from yoked.train.optim.groups import group_settings

__all__ = ["on_ranks"]


def _shapes(n_layer: int, width: int, n_head: int, n_kv_head: int, vocab: int) -> dict:
    """Every parameter of such a model with its shape, in no order that matters."""
    kv_width = width // n_head * n_kv_head
    shapes: dict[str, tuple[int, ...]] = {
        "backout_lambda": (1,),
        "smear_lambda": (1,),
        "smear_gate.weight": (1, 24),
        "resid_lambdas": (n_layer,),
        "x0_lambdas": (n_layer,),
        "lm_head.weight": (vocab, width),
        "transformer.wte.weight": (vocab, width),
    }
    for layer in reversed(range(n_layer)):
        name = f"transformer.h.{layer}"
        shapes[f"{name}.mlp.c_proj.weight"] = (width, 4 * width)
        shapes[f"{name}.mlp.c_fc.weight"] = (4 * width, width)
        for matrix, rows in (("c_q", width), ("c_k", kv_width), ("c_v", kv_width)):
            shapes[f"{name}.attn.{matrix}.weight"] = (rows, width)
        shapes[f"{name}.attn.c_proj.weight"] = (width, width)
        if layer % 2 == (n_layer - 1) % 2:
            shapes[f"{name}.attn.ve_gate.weight"] = (n_kv_head, 12)
            shapes[f"value_embeds.{layer}.weight"] = (vocab, kv_width)
    return shapes


def reference_settings(width: int) -> dict:
    """What a checkpoint says of each parameter group, by default and at the reference batch."""
    config = TrainConfig()
    return group_settings(config, width, batch_lr_scale=1.0, muon_weight_decay=config.weight_decay)


class TinyState:
    """Random tensors for a model of the given shapes."""

    def __init__(self, seed: int = 1, **sizes: int) -> None:
        given = {"n_layer": 2, "width": 32, "n_head": 2, "n_kv_head": 2, "vocab": 64, **sizes}
        self.n_embd = given["width"]
        self.shapes = _shapes(**given)
        self._generator = torch.Generator().manual_seed(seed)
        self.model = {name: self._random(shape) for name, shape in self.shapes.items()}
        self.optim = self._optim()
        self.settings = reference_settings(self.n_embd)
        self.saved = {**self.optim, "settings": self.settings}
        self.meta = {"model_config": {"n_embd": self.n_embd}, "total_batch_size": 128}

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator)

    def _optim(self) -> dict:
        state: dict = {"adamw": {}, "muon": {}}
        for name, shape in self.shapes.items():
            if name.startswith("transformer.h."):
                rows, cols = shape
                second = (rows, 1) if rows >= cols else (1, cols)
                state["muon"][name] = {
                    "momentum_buffer": self._random(shape),
                    "second_momentum_buffer": self._random(second).abs(),
                }
            else:
                state["adamw"][name] = {
                    "step": 7,
                    "exp_avg": self._random(shape),
                    "exp_avg_sq": self._random(shape).abs(),
                }
        return state


@pytest.fixture
def tiny_state():
    """Makes a TinyState: tiny_state(seed=1, n_layer=2, width=32, ...)."""
    return TinyState


def _same(left: object, right: object) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right


@pytest.fixture
def same():
    """Whether two nests of dictionaries hold equal keys, tensors (bitwise) and values."""
    return _same


@pytest.fixture(params=["compiled", "pytorch"])
def passes(request):
    """Each test runs with the compiled passes and without them."""
    if request.param == "pytorch":
        kernels.switch_off("comparing the two")
    elif not kernels.kernels().available:
        pytest.skip(f"no compiled passes: {kernels.kernels().reason}")
    yield request.param
    kernels.switch_on()

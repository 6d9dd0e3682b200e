"""Which parameter is trained by what, with which rates: nanochat's groups, in its order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yoked.costmodel.model_shape import POLAR_EXPRESS_STEPS
from yoked.errors import CheckpointError
from yoked.train.config import TrainConfig
from yoked.train.optim.adamw import EPS
from yoked.train.optim.muon import BETA2

Shapes = Mapping[str, tuple[int, ...]]
GroupSettings = dict[str, dict[str, Any]]

# The width for which AdamW's rates of the tables are given.
REFERENCE_WIDTH = 768
MUON = "muon"
# Of a layer, in the order of its modules.
_MATRICES = (
    "attn.c_q",
    "attn.c_k",
    "attn.c_v",
    "attn.c_proj",
    "attn.ve_gate",
    "mlp.c_fc",
    "mlp.c_proj",
)
_VALUE_EMBED = re.compile(r"value_embeds\.(\d+)\.weight")
_LAYER = re.compile(r"transformer\.h\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are updated alike. name: of its settings; one of Muon for each shape."""

    name: str
    names: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Which rule updates the group: `adamw` or `muon`."""
        return MUON if self.name == MUON else "adamw"


def parameter_groups(shapes: Shapes) -> list[ParameterGroup]:
    """The groups in nanochat's order for a model with these parameters.

    shapes: every parameter of the model by its state-dict name.
    Raises CheckpointError for a name that nanochat's model does not have.
    """
    # By number: as text, layer 10 would come before 2.
    tables = sorted((int(m[1]), name) for name in shapes if (m := _VALUE_EMBED.fullmatch(name)))
    fixed = {
        "lm_head": ("lm_head.weight",),
        "wte": ("transformer.wte.weight",),
        "value_embeds": tuple(name for _, name in tables),
        "resid_lambdas": ("resid_lambdas",),
        "x0_lambdas": ("x0_lambdas",),
        "smear": ("smear_gate.weight", "smear_lambda", "backout_lambda"),
    }
    matrices = _matrices_in_module_order(shapes)
    known = {name for names in fixed.values() for name in names} | set(matrices)
    if known != set(shapes):
        raise CheckpointError(
            "the model's parameters are not those of nanochat's model: "
            f"missing {sorted(known - set(shapes))}, unknown {sorted(set(shapes) - known)}."
        )
    groups = [ParameterGroup(name, names) for name, names in fixed.items()]
    for shape in sorted({tuple(shapes[name]) for name in matrices}):
        same = tuple(name for name in matrices if tuple(shapes[name]) == shape)
        groups.append(ParameterGroup(MUON, same))
    return groups


def _matrices_in_module_order(shapes: Shapes) -> list[str]:
    found = []
    for name in shapes:
        match = _LAYER.fullmatch(name)
        if match and match[2] in _MATRICES:
            found.append((int(match[1]), _MATRICES.index(match[2]), name))
    return [name for _, _, name in sorted(found)]


def group_settings(
    config: TrainConfig, n_embd: int, *, batch_lr_scale: float, muon_weight_decay: float
) -> GroupSettings:
    """Each group's settings by its name, as nanochat keeps them in a checkpoint.

    config: has the base rates. batch_lr_scale multiplies every rate but the fixed 0.2 of the smear
    and backout scalars; AdamW's rates of the tables also shrink with the square root of n_embd.
    Rates are unscheduled. Muon's weight decay and momentum are those before their schedules;
    nanochat computes both anew at every step.
    """
    width = (n_embd / REFERENCE_WIDTH) ** -0.5 * batch_lr_scale
    scalar_lr = config.scalar_lr * batch_lr_scale
    matrix_lr = config.matrix_lr * batch_lr_scale  # alike for all shapes: scaled in the update
    return {
        "lm_head": _adamw(config.unembedding_lr * width, (0.8, 0.96), 0.01),
        "wte": _adamw(config.embedding_lr * width, (0.8, 0.995), 0.001),
        "value_embeds": _adamw(config.embedding_lr * 0.5 * width, (0.8, 0.995), 0.01),
        "resid_lambdas": _adamw(scalar_lr * 0.01, (0.8, 0.95), 0.05),
        "x0_lambdas": _adamw(scalar_lr, (0.96, 0.95), 0.0),
        "smear": _adamw(0.2, (0.8, 0.95), 0.0),
        MUON: {
            "lr": matrix_lr,
            "momentum": 0.95,
            "ns_steps": POLAR_EXPRESS_STEPS,
            "beta2": BETA2,
            "weight_decay": muon_weight_decay,
            "initial_lr": matrix_lr,
        },
    }


def _adamw(lr: float, betas: tuple[float, float], weight_decay: float) -> dict[str, Any]:
    return {"lr": lr, "betas": betas, "eps": EPS, "weight_decay": weight_decay, "initial_lr": lr}

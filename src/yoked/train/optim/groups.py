"""Which parameter is trained by what, with which rates: nanochat's groups, in its order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yoked.costmodel.model_shape import POLAR_EXPRESS_STEPS
from yoked.errors import CheckpointError
from yoked.train.model.gpt import GPT
from yoked.train.optim.adamw import EPS
from yoked.train.optim.muon import BETA2

Shapes = Mapping[str, tuple[int, ...]]

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


@dataclass(frozen=True)
class LearningRates:
    """Base rates as the flags give them, before any scaling."""

    embedding: float = 0.3
    unembedding: float = 0.008
    matrix: float = 0.02
    scalar: float = 0.5
    weight_decay: float = 0.28


@dataclass(frozen=True)
class AdamWGroup:
    """Parameters that share AdamW's settings; lr is already scaled, but for the schedule."""

    name: str
    names: tuple[str, ...]
    lr: float
    betas: tuple[float, float]
    weight_decay: float


@dataclass(frozen=True)
class MuonGroup:
    """Matrices of one shape."""

    names: tuple[str, ...]
    shape: tuple[int, int]
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Groups:
    """Every parameter of a model, in exactly one group."""

    adamw: tuple[AdamWGroup, ...]
    muon: tuple[MuonGroup, ...]


def build_groups(
    model: GPT, rates: LearningRates, *, batch_lr_scale: float, muon_weight_decay: float
) -> Groups:
    """All parameters of a model in their groups, with the rates of a run.

    batch_lr_scale multiplies every rate but the fixed 0.2 of the smear and backout scalars;
    AdamW's rates of the tables also shrink with the square root of the width.
    """
    width = (model.config.n_embd / REFERENCE_WIDTH) ** -0.5 * batch_lr_scale
    scalar = rates.scalar * batch_lr_scale
    settings = {  # rate, betas, weight decay
        "lm_head": (rates.unembedding * width, (0.8, 0.96), 0.01),
        "wte": (rates.embedding * width, (0.8, 0.995), 0.001),
        "value_embeds": (rates.embedding * 0.5 * width, (0.8, 0.995), 0.01),
        "resid_lambdas": (scalar * 0.01, (0.8, 0.95), 0.05),
        "x0_lambdas": (scalar, (0.96, 0.95), 0.0),
        "smear": (0.2, (0.8, 0.95), 0.0),
    }
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    adamw, muon = [], []
    for group in parameter_groups(shapes):
        if group.kind == MUON:
            rows, columns = shapes[group.names[0]]
            lr = rates.matrix * batch_lr_scale
            muon.append(MuonGroup(group.names, (rows, columns), lr, muon_weight_decay))
        else:
            adamw.append(AdamWGroup(group.name, group.names, *settings[group.name]))
    return Groups(tuple(adamw), tuple(muon))


def group_settings(groups: Groups) -> dict[str, dict[str, Any]]:
    """Each group's settings by its name, as nanochat keeps them in a checkpoint.

    Rates are unscheduled. Muon's weight decay and momentum are those before their schedules;
    nanochat computes both anew at every step.
    """
    settings: dict[str, dict[str, Any]] = {
        group.name: {
            "lr": group.lr,
            "betas": group.betas,
            "eps": EPS,
            "weight_decay": group.weight_decay,
            "initial_lr": group.lr,
        }
        for group in groups.adamw
    }
    settings[MUON] = {
        "lr": groups.muon[0].lr,  # alike for all shapes: Muon scales it in the update
        "momentum": 0.95,
        "ns_steps": POLAR_EXPRESS_STEPS,
        "beta2": BETA2,
        "weight_decay": groups.muon[0].weight_decay,
        "initial_lr": groups.muon[0].lr,
    }
    return settings

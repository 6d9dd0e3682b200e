"""Which parameter is trained by what, with which rates."""

from __future__ import annotations

from dataclasses import dataclass

from yoked.train.model.gpt import GPT

REFERENCE_WIDTH = 768


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

    title: str
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
    """All parameters of a model in their groups, in nanochat's order.

    batch_lr_scale multiplies every rate but the fixed 0.2 of the smear and backout scalars;
    AdamW's rates of the tables also shrink with the square root of the width.
    """
    width = (model.config.n_embd / REFERENCE_WIDTH) ** -0.5 * batch_lr_scale
    tables = [name for name, _ in model.tables()]
    smear = ("smear_gate.weight", "smear_lambda", "backout_lambda")
    scalar = rates.scalar * batch_lr_scale
    value_embeds = rates.embedding * 0.5 * width
    adamw = (
        AdamWGroup("lm_head", ("lm_head.weight",), rates.unembedding * width, (0.8, 0.96), 0.01),
        AdamWGroup("wte", (tables[0],), rates.embedding * width, (0.8, 0.995), 0.001),
        AdamWGroup("value_embeds", tuple(tables[1:]), value_embeds, (0.8, 0.995), 0.01),
        AdamWGroup("resid_lambdas", ("resid_lambdas",), scalar * 0.01, (0.8, 0.95), 0.05),
        AdamWGroup("x0_lambdas", ("x0_lambdas",), scalar, (0.96, 0.95), 0.0),
        AdamWGroup("smear", smear, 0.2, (0.8, 0.95), 0.0),
    )
    shapes: dict[tuple[int, int], list[str]] = {}
    for name, parameter in model.named_parameters():
        if name.startswith("transformer.h."):
            rows, columns = parameter.shape
            shapes.setdefault((rows, columns), []).append(name)
    muon = tuple(
        MuonGroup(tuple(shapes[shape]), shape, rates.matrix * batch_lr_scale, muon_weight_decay)
        for shape in sorted(shapes)
    )
    groups = Groups(adamw, muon)
    grouped = [
        name for names in (*(g.names for g in adamw), *(g.names for g in muon)) for name in names
    ]
    assert sorted(grouped) == sorted(name for name, _ in model.named_parameters()), grouped
    return groups


def group_settings(groups: Groups) -> dict[str, dict[str, float]]:
    """Each group's unscheduled rates by the title that `nanochat_format` knows it by."""
    settings = {group.title: {"lr": group.lr, "initial_lr": group.lr} for group in groups.adamw}
    settings["muon"] = {
        "lr": groups.muon[0].lr,
        "initial_lr": groups.muon[0].lr,
        "weight_decay": groups.muon[0].weight_decay,
    }
    return settings

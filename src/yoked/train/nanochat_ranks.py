"""nanochat's optimizer state in parts: what each of several ranks keeps in a file of its own.

Facts about the format (July 2026): rank R of N reads and writes `optim_STEP_rankR.pt`. AdamW's
moments are cut along the first dimension into N equal parts, but those of fewer than 1,024 numbers
are whole on every rank. A Muon group of K stacked matrices is cut into N parts of ceil(K/N)
matrices; zeros fill the last ones up. Groups, numbers and steps are alike on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from yoked.errors import CheckpointError
from yoked.train.checkpoint_files import optim_name
from yoked.train.optim.groups import ParameterGroup, Shapes, parameter_groups
from yoked.train.optim.late_gradients import LATE_GRADIENT

# An AdamW parameter with fewer numbers is updated whole by every rank.
_CUT_FROM = 1024
_OPTIM = re.compile(r"optim_(\d{6,})_rank(\d+)\.pt")


def optim_parts(names: Iterable[str], step: int) -> list[str]:
    """Those of the names that are files of the optimizer's state, from rank 0 on.

    Raises CheckpointError where a rank's is missing before the last one.
    """
    matches = [_OPTIM.fullmatch(name) for name in names]
    ranks = sorted(int(match[2]) for match in matches if match and int(match[1]) == step)
    if ranks != list(range(len(ranks))):
        missing = min(set(range(len(ranks))) - set(ranks))
        raise CheckpointError(
            f"{optim_name(step, missing)} is missing beside {optim_name(step, ranks[-1])}: "
            "nanochat's ranks have a part of the optimizer's state each.",
            fix=(
                "bring it from the host on which that rank ran",
                "or move the other parts away to begin with a new optimizer",
            ),
        )
    return [optim_name(step, rank) for rank in ranks]


def uncuttable(shapes: Shapes, ranks: int) -> str | None:
    """The first AdamW parameter that nanochat cannot cut into so many parts; None: it can."""
    for group in parameter_groups(shapes):
        if group.kind == "adamw":
            for name in group.names:
                if _is_cut(shapes[name], ranks) and shapes[name][0] % ranks:
                    return name
    return None


def part_of_rank(
    state_dict: Mapping[str, Any], shapes: Shapes, rank: int, ranks: int
) -> dict[str, Any]:
    """What one of several ranks keeps of a whole state dict. What is cut is copied.

    state_dict: as `nanochat_format.to_nanochat` has it. Of no parameter may `uncuttable` tell.
    """
    cut: dict[int, dict[str, Any]] = {}
    first = 0
    for group in parameter_groups(shapes):
        for index, name in enumerate(group.names, start=first):
            if index in state_dict["state"]:
                cut[index] = {
                    key: _cut(group, shapes[name], value, rank, ranks)
                    for key, value in state_dict["state"][index].items()
                    if key != LATE_GRADIENT  # nanochat has no use for gradients that wait
                }
        first += len(group.names)
    return {"state": cut, "param_groups": state_dict["param_groups"]}


def join_ranks(parts: Sequence[Mapping[str, Any]], shapes: Shapes) -> Mapping[str, Any]:
    """The whole state dict of what all ranks keep, in the order of their numbers.

    Shapes are not compared: `nanochat_format.from_nanochat` does that. Raises CheckpointError for
    what is no optimizer state, or not of this model.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        whole: dict[int, dict[str, Any]] = {}
        first = 0
        for group in parameter_groups(shapes):
            for index, name in enumerate(group.names, start=first):
                if index in parts[0]["state"]:
                    entries = [part["state"][index] for part in parts]
                    whole[index] = {
                        key: _joined(group, shapes[name], [entry[key] for entry in entries])
                        for key in entries[0]
                    }
            first += len(group.names)
        return {"state": whole, "param_groups": parts[0]["param_groups"]}
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise CheckpointError(
            f"they are not the optimizer states of {len(parts)} of nanochat's ranks ({error!r})."
        ) from error


def _is_cut(shape: Sequence[int], ranks: int) -> bool:
    return ranks > 1 and torch.Size(shape).numel() >= _CUT_FROM


def _cut(group: ParameterGroup, shape: Sequence[int], value: Any, rank: int, ranks: int) -> Any:
    if group.kind == "adamw":
        if not isinstance(value, Tensor) or not _is_cut(shape, ranks):
            return value
        rows = shape[0] // ranks
        # Not a view: torch.save would write all that is behind it.
        return value[rank * rows : (rank + 1) * rows].clone()
    count = -(-len(group.names) // ranks)
    mine = value[rank * count : (rank + 1) * count]
    return torch.cat([mine, value.new_zeros((count - len(mine), *value.shape[1:]))])


def _joined(group: ParameterGroup, shape: Sequence[int], values: Sequence[Any]) -> Any:
    if group.kind == "adamw":
        is_cut = isinstance(values[0], Tensor) and _is_cut(shape, len(values))
        return torch.cat(list(values)) if is_cut else values[0]
    return torch.cat(list(values))[: len(group.names)]

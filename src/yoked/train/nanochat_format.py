"""nanochat's checkpoint format: what its tools read and write, to and from our own terms.

Facts about the format (July 2026): the optimizer's state is `torch.optim.Optimizer.state_dict()`,
where parameters are numbered in the order of their groups. Six AdamW groups come first, then one
Muon group for each matrix shape, in the order of the shapes. The Muon state of a whole group is
stacked and lies under its first parameter.

Our own optimizer state knows parameters by name:

    {"adamw": {name: {"step": int, "exp_avg": like the parameter, "exp_avg_sq": likewise,
                      and of the lm_head "late_gradient", where `--sync late` has one}},
     "muon": {name: {"momentum_buffer": (rows, cols),
                     "second_momentum_buffer": (rows, 1) if rows >= cols else (1, cols),
                     "late_gradient": (rows, cols), where `--sync late` has one}},
     "settings": {group: {"lr": ..., "initial_lr": ..., ...}}}    # for nanochat only

Groups and their settings are those of `yoked.train.optim.groups`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yoked.core.fs import write_bytes
from yoked.errors import CheckpointError
from yoked.train.optim.groups import ParameterGroup, Shapes, parameter_groups
from yoked.train.optim.late_gradients import LATE_GRADIENT
from yoked.train.tokenizer import Tokenizer

_OF_MUON = ("momentum_buffer", "second_momentum_buffer")

OptimState = dict[str, dict[str, dict[str, Any]]]


class Snapshot:
    """How tensors are taken over into a state that is to be written.

    Here as they are, and copied only where they could not be written so: they must not change
    before they are written.
    """

    def keep(self, _key: str, tensor: Tensor, /) -> Tensor:
        """The tensor itself, unless it is a view of something larger or on a device."""
        tensor = tensor.detach().cpu()
        # torch.save writes the whole storage behind a view.
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return tensor if whole else tensor.clone()

    def stack(self, _key: str, tensors: Sequence[Tensor], /) -> Tensor:
        """A new tensor: nothing else holds the stack."""
        return torch.stack([tensor.detach().cpu() for tensor in tensors])


def to_nanochat(
    state: OptimState,
    shapes: Shapes,
    *,
    settings: Mapping[str, Mapping[str, Any]],
    snapshot: Snapshot | None = None,
) -> dict[str, Any]:
    """nanochat's optimizer state dict at one rank.

    state: ours, whole (all owners' parts merged); parameters never updated yet may be absent.
    settings: of each group by its name, as `group_settings` has them.
    """
    snapshot = snapshot or Snapshot()
    tensors: dict[int, dict[str, Any]] = {}
    param_groups: list[dict[str, Any]] = []
    first = 0
    for group in parameter_groups(shapes):
        if group.kind == "adamw":
            for index, name in enumerate(group.names, start=first):
                if name in state["adamw"]:
                    tensors[index] = {
                        key: snapshot.keep(f"{name}:{key}", v) if isinstance(v, Tensor) else v
                        for key, v in state["adamw"][name].items()
                    }
        elif stacked := _stack_group(group, state["muon"], snapshot):
            tensors[first] = stacked
        indices = list(range(first, first + len(group.names)))
        first += len(indices)
        param_groups.append({"kind": group.kind, **settings[group.name], "params": indices})
    return {"state": tensors, "param_groups": param_groups}


def _stack_group(
    group: ParameterGroup, state: Mapping[str, Mapping[str, Tensor]], snapshot: Snapshot
) -> dict[str, Tensor]:
    present = [name for name in group.names if name in state]
    if not present:
        return {}
    assert len(present) == len(group.names), (
        f"Muon state of {set(group.names) - set(present)} is missing: were all owners merged?"
    )
    return {
        key: snapshot.stack(f"{present[0]}:{key}", [state[name][key] for name in present])
        for key in (*_OF_MUON, LATE_GRADIENT)
        if key in _OF_MUON or key in state[present[0]]
    }


def from_nanochat(state_dict: Mapping[str, Any], shapes: Shapes) -> OptimState:
    """Our optimizer state from nanochat's state dict of one rank; tensors are shared, not copied.

    What several ranks wrote is joined first (`nanochat_ranks.join_ranks`). Raises CheckpointError
    when it is of another model, or lacks parts.
    """
    groups = parameter_groups(shapes)
    try:
        found = [(g["kind"], list(g["params"])) for g in state_dict["param_groups"]]
        tensors = state_dict["state"]
        expected = [(group.kind, len(group.names)) for group in groups]
        if [(kind, len(params)) for kind, params in found] != expected:
            raise CheckpointError(
                f"the optimizer state has other parameter groups than the model: {found}."
            )
        state: OptimState = {"adamw": {}, "muon": {}}
        for group, (_, indices) in zip(groups, found, strict=True):
            if group.kind == "adamw":
                for name, index in zip(group.names, indices, strict=True):
                    if index in tensors:
                        state["adamw"][name] = _adamw_entry(name, tensors[index], shapes)
            elif indices[0] in tensors:
                state["muon"].update(_unstack_group(group, tensors[indices[0]], shapes))
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise CheckpointError(f"it is not an optimizer state of nanochat's ({error!r}).") from error
    return state


def _adamw_entry(name: str, entry: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    for key in ("exp_avg", "exp_avg_sq"):
        _require_shape(f"{key} of {name}", entry[key], tuple(shapes[name]))
    found = {key: entry[key] for key in ("exp_avg", "exp_avg_sq", LATE_GRADIENT) if key in entry}
    return {"step": int(entry["step"]), **found}


def _unstack_group(
    group: ParameterGroup, entry: Mapping[str, Tensor], shapes: Shapes
) -> dict[str, dict[str, Tensor]]:
    rows, cols = shapes[group.names[0]]
    count = len(group.names)
    second_shape = (count, rows, 1) if rows >= cols else (count, 1, cols)
    momentum, second = entry["momentum_buffer"], entry["second_momentum_buffer"]
    what = f"of the {rows} x {cols} matrices"
    _require_shape(f"momentum_buffer {what}", momentum, (count, rows, cols))
    _require_shape(f"second_momentum_buffer {what}", second, second_shape)
    stacks = {"momentum_buffer": momentum, "second_momentum_buffer": second}
    if LATE_GRADIENT in entry:
        stacks[LATE_GRADIENT] = entry[LATE_GRADIENT]
        _require_shape(f"{LATE_GRADIENT} {what}", entry[LATE_GRADIENT], (count, rows, cols))
    return {
        name: {key: stack[i] for key, stack in stacks.items()} for i, name in enumerate(group.names)
    }


def _require_shape(what: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise CheckpointError(
            f"{what} has shape {tuple(tensor.shape)}, not {expected}: the optimizer state is of "
            "another model, or one of several ranks wrote it and the others' parts are missing.",
            fix=(
                "put the optimizer files of all ranks beside it",
                "or move it away to begin with a new optimizer",
            ),
        )


def checkpoint_meta(
    *,
    model_config: Mapping[str, Any],
    user_config: Mapping[str, Any],
    device_batch_size: int,
    max_seq_len: int,
    total_batch_size: int,
    val_bpb: float | None,
    min_val_bpb: float = math.inf,
    smooth_train_loss: float = 0.0,
    total_training_time_s: float = 0.0,
) -> dict[str, Any]:
    """The keys of a meta file without which nanochat does not resume, bar the step.

    total_batch_size in tokens, device_batch_size in rows. dataloader_state_dict is nanochat's place
    in its own parquet files; rows that were packed ahead have none, so nanochat would begin with
    the first file.
    """
    return {
        "val_bpb": val_bpb,
        "model_config": dict(model_config),
        "user_config": dict(user_config),
        "device_batch_size": device_batch_size,
        "max_seq_len": max_seq_len,
        "total_batch_size": total_batch_size,
        "dataloader_state_dict": {"pq_idx": 0, "rg_idx": 0, "epoch": 1},
        "loop_state": {
            "min_val_bpb": min_val_bpb,
            "smooth_train_loss": smooth_train_loss,
            "total_training_time": total_training_time_s,
        },
    }


def export_tokenizer(tokenizer_folder: Path, target: Path) -> None:
    """Write a tokenizer to `target` as nanochat wants it there: tokenizer.pkl, token_bytes.pt.

    Our own file of the tokenizer lies beside them. token_bytes is int32, (vocab_size,): the bytes
    of each token's text, 0 for special tokens. Raises DataError when the tokenizer cannot be read.
    """
    tokenizer = Tokenizer.load(tokenizer_folder)
    tokenizer.save(target)
    content = io.BytesIO()
    torch.save(torch.from_numpy(tokenizer.token_bytes().copy()), content)
    write_bytes(target / "token_bytes.pt", content.getvalue())

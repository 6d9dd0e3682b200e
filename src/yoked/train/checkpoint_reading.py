"""Reads the files of a checkpoint, which may be anybody's: plain data, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yoked.errors import CheckpointError
from yoked.shape import anything, misfit, quantity

# What is used of a meta file; nanochat's older ones lack some.
_META = {
    "model_config?": {str: anything},
    "yoked?": ({str: anything}, None),
    "loop_state?": (
        {"total_training_time?": (quantity, None), "min_val_bpb?": (float, None)},
        None,
    ),
    "val_bpb?": (float, None),
}


def read_tensors(path: Path) -> dict[Any, Any]:
    """A file that torch.save wrote, mapped rather than read; only tensors and plain values."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    # A damaged file can raise nearly anything; only what is plain data is read.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{path} is damaged or no checkpoint: {reason}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is no checkpoint: it holds a {type(content).__name__}.")
    return content


def read_model(path: Path) -> dict[str, Tensor]:
    """The weights of a file, by name."""
    found = {}
    for name, tensor in read_tensors(path).items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path} is no model: it holds more than tensors by name.")
        # A compiled model's state dict has this prefix.
        found[name.removeprefix("_orig_mod.")] = tensor
    return found


def read_meta(path: Path) -> dict[str, Any]:
    """The meta file, with what is used of it in the form that it must have."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from error
    if (why := misfit(content, _META)) is not None:
        raise CheckpointError(f"{path} is no meta file: {why}.")
    found: dict[str, Any] = content
    return found

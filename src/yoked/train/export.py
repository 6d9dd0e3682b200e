"""A trained model in a folder for other programs: weights and configuration, and how to load them.

The folder is made beside its place under a name that nothing looks for, and renamed when it is
whole: it is complete or absent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from yoked.core.fs import disk_full, free_bytes, lock_folder, sync_path, write_json
from yoked.errors import UsageError, YokedError
from yoked.train import standalone
from yoked.train.checkpoint import CheckpointStore
from yoked.train.checkpoint_files import (
    MODEL_FOLDERS,
    checkpoint_files,
    find_model_folder,
    find_tokenizer,
)
from yoked.train.nanochat_format import export_tokenizer
from yoked.train.sample import model_shape, tokenizer_of
from yoked.train.tokenizer import JSON_NAME, PICKLE_NAME

Format = Literal["safetensors", "nanochat"]
# An exported folder has it, and no other: --force replaces nothing else.
MARK = "yoked_export.json"
_README = {
    "safetensors": """\
# A GPT trained by yoked

Run {name}, step {step:,}: {parameters:,} parameters, {validation}.

| file | what |
|---|---|
| `model.safetensors` | the weights, by nanochat's names |
| `config.json` | the shape of the model, and how it was trained |
| `{tokenizer}` | the tokenizer: split pattern, special tokens, tokens in base64 by their ids |
| `model.py` | the model in plain PyTorch |

```
pip install torch safetensors tiktoken
python model.py "The state of the Union is"
```

In a program:

```python
import torch
from model import bos_id, load, load_tokenizer

model, tokenizer = load("."), load_tokenizer(".")
ids = [bos_id(tokenizer), *tokenizer.encode_ordinary("The state of the Union is")]
logits = model.logits(torch.tensor([ids]))    # (1, T, {vocab_size}) float32
```
""",
    "nanochat": """\
# A GPT trained by yoked, in nanochat's layout

Run {name}, step {step:,}: {parameters:,} parameters, {validation}.

This folder is a base directory of nanochat: its tools find the model and the tokenizer in it.

```
export NANOCHAT_BASE_DIR=$PWD
python -m scripts.base_eval --model-tag {tag}
python -m scripts.chat_cli -i base -g {tag}
```

`yoked train --from FOLDER` goes on from it as well.
""",
}


@dataclass(frozen=True)
class Exported:
    """What was written. size_bytes: of all files."""

    folder: Path
    step: int
    val_bpb: float | None
    parameters: int
    size_bytes: int


def export(source: Path, target: Path, to: Format, *, checkpoint: str, force: bool) -> Exported:
    """Write a model for other programs into a folder.

    source: as `load_trained` has it. checkpoint: latest, best or a step. force: an earlier export
    may be replaced. Every file of the checkpoint is verified first. Raises UsageError,
    CheckpointError, DataError, and YokedError where the disk takes no more.
    """
    _require_free(target, force)
    model_folder = find_model_folder(source)
    store = CheckpointStore(model_folder)
    loaded = store.load(store.find(checkpoint), optimizer=to == "nanochat")
    shape = model_shape(loaded.meta, model_folder)
    tokenizer = tokenizer_of(model_folder, shape)
    parameters = sum(tensor.numel() for tensor in loaded.model_state.values())
    ours: dict[str, Any] = {
        "format": to,
        "run": (loaded.meta.get("yoked") or {}).get("run"),
        "model_tag": model_folder.name,
        "step": loaded.step,
        "val_bpb": store.val_bpb(loaded.step),
        "parameters": parameters,
    }
    files = checkpoint_files(model_folder, loaded.step)
    needed_bytes = sum(path.stat().st_size for path in files.values())
    with _made(target, needed_bytes, force=force) as folder:
        (folder / "README.md").write_text(_readme(to, ours, shape.vocab_size), encoding="utf-8")
        if to == "safetensors":
            _write_safetensors(folder, loaded.model_state)
            config = {**dataclasses.asdict(shape), "yoked": {**ours, **_trained(loaded.meta)}}
            write_json(folder / "config.json", config)
            tokenizer.save(folder)
            # Nobody needs the pickle here, and safetensors are there so that nothing is unpickled.
            (folder / PICKLE_NAME).unlink()
            shutil.copyfile(Path(standalone.__file__), folder / "model.py")
        else:
            _copy_checkpoint(files, folder / MODEL_FOLDERS / model_folder.name)
            export_tokenizer(find_tokenizer(model_folder), folder / "tokenizer")
        write_json(folder / MARK, ours)
    size_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return Exported(target, loaded.step, ours["val_bpb"], parameters, size_bytes)


def _require_free(target: Path, force: bool) -> None:
    """Raise UsageError where something is in the place of the folder that may not be replaced."""
    if not os.path.lexists(target) or (
        target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    ):
        return
    if target.is_symlink() or not (target / MARK).is_file():
        raise UsageError(
            f"{target} is there and no export of yoked's: it is not replaced",
            fix="--out FOLDER with another name",
        )
    if not force:
        raise UsageError(f"{target} is there already", fix="--force to replace it, or --out FOLDER")


@contextlib.contextmanager
def _made(target: Path, needed_bytes: int, *, force: bool) -> Iterator[Path]:
    """A new folder that gets its name at the end of the block, in place of what has it now."""
    making = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        making.parent.mkdir(parents=True, exist_ok=True)
        with _cleared(target):
            # What an export that was killed was about to replace has its name again.
            _require_free(target, force)
            if free_bytes(making.parent) < needed_bytes:
                raise disk_full(target, needed_bytes)
            making.mkdir()
            try:
                yield making
                for path in (*making.rglob("*"), making):
                    sync_path(path)
                _replace(target, making)
                sync_path(target.parent)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    except OSError as problem:
        raise YokedError(
            f"{target} cannot be written: {problem.strerror or problem}",
            fix="--out FOLDER on a disk with room that you can write to",
        ) from problem


@contextlib.contextmanager
def _cleared(target: Path) -> Iterator[None]:
    """Alone in the folder around the target, without what an export that was killed has left."""
    held = None
    # Without locks (NFS) nobody knows whether another export is at it.
    with contextlib.suppress(OSError):
        held = lock_folder(target.parent, wait=True)
    try:
        if held is not None:
            for old in target.parent.glob(f".{glob.escape(target.name)}.????????.old"):
                if not os.path.lexists(target):
                    old.rename(target)
                shutil.rmtree(old, ignore_errors=True)
            for part in target.parent.glob(f".{glob.escape(target.name)}.????????.part"):
                shutil.rmtree(part, ignore_errors=True)
        yield
    finally:
        if held is not None:
            os.close(held)


def _replace(target: Path, made: Path) -> None:
    if not os.path.lexists(target):
        made.rename(target)
        return
    # No rename replaces a folder that has files in it. A kill in between leaves the old one whole,
    # and the next export gives it its name back.
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    target.rename(old)
    try:
        made.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _write_safetensors(folder: Path, weights: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    path = folder / "model.safetensors"
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as problem:
        # It has no errno: the system's words are in its text.
        raise OSError(str(problem)) from problem
    # It is made for its owner alone, the other files by the umask.
    path.chmod((folder / "README.md").stat().st_mode)


def _copy_checkpoint(files: Mapping[str, Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, path in files.items():
        shutil.copyfile(path, folder / name)


def _trained(meta: Mapping[str, Any]) -> dict[str, Any]:
    """How the model was trained, of a checkpoint's metadata."""
    # Not the configuration: it has paths of the person who trained.
    kept = ("total_batch_size", "max_seq_len", "yoked")
    return {"trained" if key == "yoked" else key: meta[key] for key in kept if key in meta}


def _readme(to: Format, ours: Mapping[str, Any], vocab_size: int) -> str:
    val_bpb = ours["val_bpb"]
    return _README[to].format(
        name=ours["run"] or ours["model_tag"],
        step=ours["step"],
        parameters=ours["parameters"],
        validation="not evaluated" if val_bpb is None else f"{val_bpb:.4f} bits per byte",
        tokenizer=JSON_NAME,
        tag=ours["model_tag"],
        vocab_size=vocab_size,
    )

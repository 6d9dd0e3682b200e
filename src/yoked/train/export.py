"""A trained model in a folder for other programs: weights and configuration, and how to load them.

The folder is made beside its place under a name that nothing looks for, and renamed when it is
whole: it is complete or absent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from yoked.core.fs import (
    HashingWriter,
    disk_full,
    free_bytes,
    lock_folder,
    sync_path,
    write_json,
)
from yoked.errors import UsageError, YokedError
from yoked.train import standalone
from yoked.train.checkpoint import CheckpointStore
from yoked.train.checkpoint_files import (
    MODEL_FOLDERS,
    CheckpointFolder,
    checkpoint_files,
    find_model_folder,
    find_tokenizer,
    meta_name,
    model_name,
    optim_name,
)
from yoked.train.checkpoint_reading import read_tensors
from yoked.train.nanochat_format import export_tokenizer
from yoked.train.nanochat_ranks import join_ranks, optim_parts, part_of_rank, uncuttable
from yoked.train.optim.groups import Shapes
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
{start} -m scripts.chat_sft --model-tag {tag}
```

Each of nanochat's ranks reads its part of the optimizer's state from a file of its own. This folder
has the files for {ranks}; `yoked export --to nanochat --ranks N` writes them for N. Each
host on which ranks start needs this folder.

`yoked train --from FOLDER` goes on from it as well, with any number of ranks.
""",
}


@dataclass(frozen=True)
class Exported:
    """What was written. size_bytes: of all files. ranks: of nanochat, that read the optimizer;
    0: its state was not written.
    """

    folder: Path
    step: int
    val_bpb: float | None
    parameters: int
    size_bytes: int
    ranks: int


def export(
    source: Path, target: Path, to: Format, *, checkpoint: str, force: bool, ranks: int = 1
) -> Exported:
    """Write a model for other programs into a folder.

    source: as `load_trained` has it. checkpoint: latest, best or a step. force: an earlier export
    may be replaced. ranks: of nanochat, which are to read the optimizer's state.
    Every file of the checkpoint is verified first. Raises UsageError, CheckpointError, DataError,
    and YokedError where the disk takes no more.
    """
    _require_free(target, force)
    model_folder = find_model_folder(source)
    store = CheckpointStore(model_folder)
    loaded = store.load(store.find(checkpoint), optimizer=to == "nanochat")
    shape = model_shape(loaded.meta, model_folder)
    tokenizer = tokenizer_of(model_folder, shape)
    shapes = {name: tuple(tensor.shape) for name, tensor in loaded.model_state.items()}
    if to == "nanochat":
        _require_cuttable(shapes, ranks)
    files = checkpoint_files(model_folder, loaded.step)
    if to == "safetensors":
        # What is not written need not be whole, nor does it take room.
        files = {name: files[name] for name in (model_name(loaded.step), meta_name(loaded.step))}
    if not optim_parts(files, loaded.step):
        ranks = 0
    parameters = sum(tensor.numel() for tensor in loaded.model_state.values())
    ours: dict[str, Any] = {
        "format": to,
        "run": (loaded.meta.get("yoked") or {}).get("run"),
        "model_tag": model_folder.name,
        "step": loaded.step,
        "val_bpb": store.val_bpb(loaded.step),
        "parameters": parameters,
        **({"optimizer_ranks": ranks} if to == "nanochat" else {}),
    }
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
            copy = folder / MODEL_FOLDERS / model_folder.name
            _copy_checkpoint(files, copy, loaded.step, shapes, ranks=ranks, val_bpb=ours["val_bpb"])
            export_tokenizer(find_tokenizer(model_folder), folder / "tokenizer")
        write_json(folder / MARK, ours)
    size_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return Exported(target, loaded.step, ours["val_bpb"], parameters, size_bytes, ranks)


def _require_free(target: Path, force: bool) -> None:
    """Raise UsageError where something is in the place of the folder that may not be replaced."""
    if target.name in ("", ".."):
        raise UsageError(
            f"--out {target}: a folder is made beside it first, and takes its place",
            fix="--out FOLDER by its name",
        )
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


def _require_cuttable(shapes: Shapes, ranks: int) -> None:
    """Raise UsageError where nanochat itself cannot train the model on so many ranks."""
    if (name := uncuttable(shapes, ranks)) is None:
        return
    fewer = next(n for n in range(ranks - 1, 0, -1) if uncuttable(shapes, n) is None)
    raise UsageError(
        f"nanochat cannot train this model on {ranks} ranks: each updates an equal part of "
        f"{name}, and its {shapes[name][0]:,} rows are no multiple of {ranks}",
        fix=f"--ranks {fewer}",
    )


def _copy_checkpoint(
    files: Mapping[str, Path],
    folder: Path,
    step: int,
    shapes: Shapes,
    *,
    ranks: int,
    val_bpb: float | None,
) -> None:
    """Copy a checkpoint, with the optimizer's state in parts for so many of nanochat's ranks."""
    folder.mkdir(parents=True)
    parts = optim_parts(files, step)
    if len(parts) == ranks:
        for name, path in files.items():
            shutil.copyfile(path, folder / name)
        return
    whole = join_ranks([read_tensors(files[name]) for name in parts], shapes)
    contents: dict[str, Callable[[HashingWriter], object]] = {}
    for rank in range(ranks):
        contents[optim_name(step, rank)] = functools.partial(_save_part, whole, shapes, rank, ranks)
    for name in (meta_name(step), model_name(step)):
        contents[name] = functools.partial(_copy_into, files[name])
    # The manifest of the source has the sizes of other files.
    CheckpointFolder(folder).save(step, contents, val_bpb)


def _save_part(whole: Mapping[str, Any], shapes: Shapes, rank: int, ranks: int, file: Any) -> None:
    torch.save(part_of_rank(whole, shapes, rank, ranks), file)


def _copy_into(source: Path, file: HashingWriter) -> None:
    with source.open("rb") as content:
        shutil.copyfileobj(content, file)


def _trained(meta: Mapping[str, Any]) -> dict[str, Any]:
    """How the model was trained, of a checkpoint's metadata."""
    # Not the configuration: it has paths of the person who trained.
    kept = ("total_batch_size", "max_seq_len", "yoked")
    return {"trained" if key == "yoked" else key: meta[key] for key in kept if key in meta}


def _readme(to: Format, ours: Mapping[str, Any], vocab_size: int) -> str:
    val_bpb, ranks = ours["val_bpb"], ours.get("optimizer_ranks", 1)
    return _README[to].format(
        name=ours["run"] or ours["model_tag"],
        step=ours["step"],
        parameters=ours["parameters"],
        validation="not evaluated" if val_bpb is None else f"{val_bpb:.4f} bits per byte",
        tokenizer=JSON_NAME,
        tag=ours["model_tag"],
        start="python" if ranks < 2 else f"yoked run --ranks {ranks} --",
        ranks="1 rank" if ranks == 1 else f"{ranks} ranks",
        vocab_size=vocab_size,
    )

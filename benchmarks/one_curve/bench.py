"""One loss curve, whatever the ranks: the same run with 1, 2 and 3 ranks and uneven shares.

Compares every case with one rank: the whole gradient (tables included) of the first step and
of a later one on equal weights, and the loss of every step, in float32 and, as the yardstick,
in float64, where the same code must agree to the rounding of float64.

usage: bench.py [--steps 30] [--float64-steps 10] [--out FILE] [all flags of yoked train]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from yoked.train.__main__ import parse
from yoked.train.config import TrainConfig

HERE = Path(__file__).parent
# One rank again, that sums its rows one by one: what other rounding does without other ranks.
CONTROL = "1 rank, row by row"
# Ranks and the shares of a step's rows; a rank may have none.
CASES = {
    "1 rank": "1",
    "2 ranks": "1:1",
    "3 ranks": "1:1:1",
    "shares 3:1": "3:1",
    "shares 1:0:1": "1:0:1",
    CONTROL: "1",
}
# What is asked: gradients of a step, loss of the first step, loss of each step.
GRADIENT_LIMIT, FIRST_LOSS_LIMIT, LOSS_LIMIT = 1e-5, 1e-6, 1e-4
FLOAT64_LIMIT = 1e-10
CONFIGURATION = [
    *("--depth=4", "--aspect-ratio=64", "--head-dim=64", "--window-pattern=L"),
    *("--max-seq-len=512", "--device-batch-size=2", "--total-batch-size=2048"),
    *("--dtype=float32", "--num-iterations=500"),
]


def run_case(
    config: TrainConfig,
    shares: str,
    *,
    steps: int,
    dtype: str,
    out: Path,
    weights: Path | None,
    timeout_s: float = 1800,
) -> None:
    """Train one case in processes of its own; they end with this one."""
    out.mkdir(parents=True)
    world_size = len(shares.split(":"))
    lm_head = config.lm_head if world_size > 1 else "auto"
    job = {
        "config": {**config.to_dict(), "shares": shares, "ranks": None, "lm_head": lm_head},
        "steps": steps,
        "dtype": dtype,
        "out": str(out),
        "weights": None if weights is None else str(weights),
    }
    (out / "job.json").write_text(json.dumps(job))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "yoked.parent_death", str(os.getpid())),
                *(sys.executable, str(HERE / "one_rank.py"), str(out / "job.json")),
            ],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(world_size)
    ]
    try:
        statuses = [rank.wait(timeout_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(statuses):
        raise RuntimeError(f"the ranks of {shares} ended with {statuses}")


def distance(left: Path, right: Path) -> float:
    """L2 of the difference of two whole gradients over the L2 of the second."""
    with np.load(left) as a, np.load(right) as b:
        assert sorted(a.files) == sorted(b.files)
        difference = sum(float(np.sum((a[name] - b[name]) ** 2)) for name in b.files)
        length = sum(float(np.sum(b[name] ** 2)) for name in b.files)
    return float(np.sqrt(difference / length))


def compare(case: Path, reference: Path) -> dict:
    """Figures of one case against one rank."""
    mine, other = (json.loads((f / "losses.json").read_text())["losses"] for f in (case, reference))
    differences = [abs(a - b) for a, b in zip(mine, other, strict=True)]
    return {
        "gradient_first_step": distance(case / "gradient.npz", reference / "gradient.npz"),
        "gradient_later_step": distance(case / "later.npz", reference / "later.npz"),
        "loss_first_step": differences[0],
        "loss_largest": max(differences),
        "loss_differences": differences,
        "losses": mine,
    }


def measure(config: TrainConfig, folder: Path, dtype: str, steps: int, cases: dict) -> dict:
    """All cases in one dtype: {case: figures}; the first case is the reference."""
    found: dict[str, dict] = {}
    reference: Path | None = None
    for number, (name, shares) in enumerate(cases.items()):
        out = folder / dtype / str(number)
        weights = None if reference is None else reference / "weights.pt"
        rows_at_once = 1 if name == CONTROL else config.device_batch_size
        case = dataclasses.replace(config, device_batch_size=rows_at_once)
        run_case(case, shares, steps=steps, dtype=dtype, out=out, weights=weights)
        reference = reference or out
        found[name] = compare(out, reference)
        print(row(dtype, name, found[name]), flush=True)
    return found


def passes(dtype: str, figures: dict) -> bool:
    """Whether a case's figures are within what is asked."""
    gradient, first, each = GRADIENT_LIMIT, FIRST_LOSS_LIMIT, LOSS_LIMIT
    if dtype == "float64":
        gradient = first = each = FLOAT64_LIMIT
    return (
        max(figures["gradient_first_step"], figures["gradient_later_step"]) < gradient
        and figures["loss_first_step"] < first
        and figures["loss_largest"] < each
    )


def row(dtype: str, name: str, figures: dict) -> str:
    keys = ("gradient_first_step", "gradient_later_step", "loss_first_step", "loss_largest")
    cells = " | ".join(f"{figures[key]:.1e}" for key in keys)
    return f"| {dtype} | {name} | {cells} | {len(figures['losses'])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--float64-steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    known, flags = parser.parse_known_args()
    config = parse(flags or CONFIGURATION)
    print(
        "| dtype | case | gradient, step 1 | gradient, later | loss, step 1 | loss, any | steps |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        results = {
            "config": config.to_dict(),
            "float32": measure(config, Path(folder), "float32", known.steps, CASES),
            "float64": measure(config, Path(folder), "float64", known.float64_steps, CASES),
        }
    fine = all(
        passes(dtype, figures)
        for dtype in ("float32", "float64")
        for figures in results[dtype].values()
    )
    known.out.write_text(json.dumps(results, indent=1) + "\n")
    print("all within the limits" if fine else "NOT within the limits")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

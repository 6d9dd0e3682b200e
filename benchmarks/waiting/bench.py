"""Two ranks on a core each, whose processors sleep or stay awake while they wait: A B A B.

usage: bench.py [--rounds 6] [--steps 9] [--tokens 16384] [--smoke]

Prints every step's time and the ratio of the mean step; writes results/results.json. Needs two
cores, and nothing else that computes; on a machine that is not virtual the ratio should be 1.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402

from yoked.journal import read  # noqa: E402

ARMS = ("asleep", "busy")
RANKS = 2
LIMIT_S = 1800.0
# Slower than this, beside the fastest fifth of all steps: something was in the way.
HINDERED = 1.15


def train(waiting: str, options: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds of the steps of one run, without the first."""
    words = [
        *(sys.executable, "-m", "yoked.train", "--device-type=cpu", "--threads=1"),
        *("--aspect-ratio=64", "--head-dim=64", "--window-pattern=L", "--dtype=float32"),
        *("--device-batch-size=2", "--eval-every=-1", "--sync=exact", "--balance=off"),
        *(f"--depth={options.depth}", f"--max-seq-len={options.seq_len}"),
        *(f"--total-batch-size={options.tokens}", f"--num-iterations={options.steps}"),
        *(f"--waiting={waiting}", f"--runs-dir={folder}", f"--run={waiting}"),
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))[:RANKS]
    ranks = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *words],
            env=os.environ
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            | {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, core in enumerate(cores)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(said))
    return [line["dt_s"] for line in read(folder / waiting / "metrics.jsonl") if "dt_s" in line][1:]


def summarise(rounds: list[dict[str, list[float]]]) -> dict[str, Any]:
    """By arm: mean, median, and which part of the steps took clearly longer than the fastest."""
    steps_s = {arm: [step_s for turn in rounds for step_s in turn[arm]] for arm in ARMS}
    every_s = [step_s for taken in steps_s.values() for step_s in taken]
    fast_s = statistics.quantiles(every_s, n=5, method="inclusive")[0]
    found: dict[str, Any] = {
        arm: {
            "mean_s": statistics.mean(taken),
            "median_s": statistics.median(taken),
            "worst_s": max(taken),
            "hindered": sum(step_s > HINDERED * fast_s for step_s in taken) / len(taken),
        }
        for arm, taken in steps_s.items()
    }
    found["asleep_over_busy"] = [
        statistics.mean(turn["asleep"]) / statistics.mean(turn["busy"]) for turn in rounds
    ]
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=9, help="of each run; the first is left out")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a step")
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    options = parser.parse_args()
    options.depth, options.seq_len = 4, 512
    if options.smoke:
        options.rounds, options.steps, options.tokens = 2, 4, 512
        options.depth, options.seq_len = 1, 64
    if options.steps < 3 or options.rounds < 1:
        parser.error("3 steps and 1 round at least")
    return options


def main() -> int:
    options = parse()
    if len(os.sched_getaffinity(0)) < RANKS:
        raise SystemExit(f"{RANKS} processors are needed, each rank has its own")
    rounds: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory(prefix="yoked-waiting-") as folder:
        for number in range(options.rounds):
            turn = {
                arm: train(arm, options, Path(folder) / str(number))
                for arm in (ARMS if number % 2 == 0 else ARMS[::-1])
            }
            rounds.append(turn)
            for arm in ARMS:
                print(f"round {number + 1}  {arm:6}", *(f"{each:.2f}" for each in turn[arm]), "s")
    summary = summarise(rounds)
    for arm in ARMS:
        figures = summary[arm]
        print(
            f"{arm:6} mean {figures['mean_s']:.2f} s, median {figures['median_s']:.2f} s, "
            f"worst {figures['worst_s']:.2f} s, hindered {figures['hindered']:.0%} of the steps"
        )
    ratios = summary["asleep_over_busy"]
    print(
        f"asleep over busy {statistics.median(ratios):.2f}"
        f" (by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    if not options.smoke:
        (HERE / "results").mkdir(exist_ok=True)
        content = {"machine": side.machine_facts(), "summary": summary, "rounds": rounds}
        (HERE / "results" / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How many columns of the vocabulary the lm_head computes at once: widths by turns, A B A B.

usage: bench.py [--seconds 30] [--smoke]

One thread, then two processes on a core each at the same time. Prints milliseconds of a
micro-batch and the ratio to blocks as wide as a piece (2,048); writes results/results.json. Needs
two cores, and nothing else that computes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402

from yoked.train.device import DTYPES, keep_freed_memory  # noqa: E402
from yoked.train.model import cross_entropy  # noqa: E402
from yoked.train.model.linear import MatmulBackends, onednn_available  # noqa: E402

WIDTHS = (256, 512, 1024, 2048)
TOKENS, VOCAB = 1024, 32_768
# Of each a name, n_embd, dtype and the library that multiplies.
CASES = (
    ("256 wide, float32, oneDNN", 256, "float32", "onednn"),
    ("256 wide, float32, MKL", 256, "float32", "default"),
    ("256 wide, bfloat16", 256, "bfloat16", "default"),
    ("768 wide, float32, oneDNN", 768, "float32", "onednn"),
)


def measure(case: tuple[str, int, str, str], tokens: int, until: float) -> dict[int, list[float]]:
    """Seconds of the loss and its gradients of one micro-batch, by width, taken in turns."""
    _, channels, dtype_name, library = case
    dtype = DTYPES[dtype_name]
    hidden = torch.randn(tokens, channels).to(dtype)
    weight = (torch.randn(VOCAB, channels) * 0.02).to(dtype)
    targets = torch.randint(0, VOCAB, (tokens,))
    total = torch.zeros(VOCAB, channels)
    heads = {
        width: cross_entropy.FusedLinearCrossEntropy(VOCAB, MatmulBackends.all(library))
        for width in WIDTHS
    }
    taken: dict[int, list[float]] = {width: [] for width in WIDTHS}
    while time.time() < until or not taken[WIDTHS[-1]][1:]:
        for width in WIDTHS:
            # In every dtype, whatever yoked would choose.
            cross_entropy.block_columns = lambda *_, width=width: width
            started = time.perf_counter()
            heads[width].loss(hidden, weight, targets, grad_scale=1e-4, weight_grad_VC=total)
            taken[width].append(time.perf_counter() - started)
    # The first of each warms up.
    return {width: times[1:] for width, times in taken.items()}


def child(case_number: int, tokens: int, until: float) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print(json.dumps(measure(CASES[case_number], tokens, until)))


def run(case_number: int, processes: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One process, or one on each of several cores; what each has measured."""
    cores = sorted(os.sched_getaffinity(0))[:processes]
    # All have loaded PyTorch by then.
    until = time.time() + 5 + options.seconds
    words = [sys.executable, __file__, "--child", str(case_number), str(options.tokens), str(until)]
    children = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *words], stdout=subprocess.PIPE, text=True
        )
        for core in cores
    ]
    said = [each.communicate()[0] for each in children]
    if any(each.returncode for each in children):
        raise SystemExit("a process failed")
    return [json.loads(line) for line in said]


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each case")
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    options = parser.parse_args()
    options.tokens = 32 if options.smoke else TOKENS
    options.seconds = 0.0 if options.smoke else options.seconds
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("two processors are needed")
    found: list[dict[str, Any]] = []
    for number, (name, _, _, library) in enumerate(CASES):
        if library == "onednn" and not onednn_available():
            continue
        for processes in (1, 2):
            taken = run(number, processes, options)
            median_s = {
                width: statistics.median(
                    each_s for process in taken for each_s in process[str(width)]
                )
                for width in WIDTHS
            }
            ratios = {width: median_s[WIDTHS[-1]] / median_s[width] for width in WIDTHS}
            print(
                f"{name:27} {processes} at once  "
                + "  ".join(
                    f"{width}: {1e3 * median_s[width]:.0f} ms, {ratios[width]:.3f}x"
                    for width in WIDTHS
                ),
                flush=True,
            )
            found.append(
                {"case": name, "processes": processes, "median_s": median_s, "taken_s": taken}
            )
    if not options.smoke:
        (HERE / "results").mkdir(exist_ok=True)
        content = {"machine": side.machine_facts(), "cases": found}
        (HERE / "results" / "results.json").write_text(json.dumps(content) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

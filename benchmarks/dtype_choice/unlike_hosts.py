"""Two hosts of which one has no instructions for bfloat16: one dtype for both, or each in its own.

usage: python benchmarks/dtype_choice/unlike_hosts.py [--rounds 2] [--steps 16] [--smoke]

Each host is a UTS namespace with a core of its own; they meet on loopback, by plain torchrun. Arms
take turns: float32, bfloat16, auto. Prints tokens/s and their ratios, and writes
results/unlike_hosts.json. As root, on two cores with AVX512-BF16 or AMX.
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
from dtype_choice import HELD  # noqa: E402

ARMS = ("float32", "bfloat16", "auto")
HOSTS = dict(zip(("new", "old"), HELD.values(), strict=True))
MODEL = (
    *("--device-type=cpu", "--depth=4", "--aspect-ratio=64", "--head-dim=64", "--window-pattern=L"),
    *("--max-seq-len=512", "--total-batch-size=4096", "--eval-every=-1", "--save-every=-1"),
)


def run(arm: str, steps: int, folder: Path) -> dict[str, Any]:
    """tokens_per_second, and what each host computed in and with which part of the rows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for number, (name, limits) in enumerate(HOSTS.items()):
        command = [
            *("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name),
            *("taskset", "-c", str(number), sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=2", f"--node_rank={number}", "--nproc_per_node=1"),
            *("--master_addr=127.0.0.1", f"--master_port={port}", "-m", "yoked.train", "--"),
            *(f"--run={arm}", f"--runs-dir={folder}", f"--num-iterations={steps}"),
            *(f"--dtype={arm}", "--keep=all", "--json", *MODEL),
        ]
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **limits}
        ranks.append(
            subprocess.Popen(
                command,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(errors[-2000:] for _, errors in said))
    found = json.loads(said[0][0].splitlines()[-1])
    hosts = {each["name"]: [each["dtype"], round(each["share"], 3)] for each in found["hosts"]}
    return {"arm": arm, "tokens_per_second": found["tokens_per_second"], "hosts": hosts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--smoke", action="store_true", help="two steps of each, nothing is kept")
    options = parser.parse_args()
    rounds, steps = (1, 2) if options.smoke else (options.rounds, options.steps)
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        run("float32", 2, Path(folder) / "warm-up")
        for number in range(rounds):
            turns.append([run(arm, steps, Path(folder) / str(number)) for arm in ARMS])
            for each in turns[-1]:
                rate = f"{each['tokens_per_second']:7,.0f} tokens/s"
                print(f"{each['arm']:9} {rate}  {each['hosts']}", flush=True)
    by_arm = {
        arm: [turn[place]["tokens_per_second"] for turn in turns] for place, arm in enumerate(ARMS)
    }
    ratios = {
        arm: statistics.median(
            auto / one for auto, one in zip(by_arm["auto"], by_arm[arm], strict=True)
        )
        for arm in ARMS[:2]
    }
    for arm, ratio in ratios.items():
        print(f"each in its own: {ratio:.2f} times {arm} on both")
    if not options.smoke:
        told = {"machine": side.machine_facts(), "turns": turns, "ratios": ratios}
        path = HERE / "results" / "unlike_hosts.json"
        path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

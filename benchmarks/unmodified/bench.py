"""Other people's programs over two hosts of a lab, with real ssh: do their ranks stay equal?

usage: bench.py [--only ddp|accelerate|nanochat ...] [--nanochat CHECKOUT] [--out FILE]

nanochat is left out where no checkout is named. As root. Writes results/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nanochat_side as side
from compare import Comparison, checksums, compare
from prepare_nanochat import prepare, train_words

from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parents[1] / "tests" / "distributed" / "programs"
# In the hosts' own folder for what is temporary: each has its ranks' alone.
SUMS = "/tmp/checksums"
# A lab's hosts see what was in a home when it came up.
BASE = Path.home() / ".cache" / "yoked-bench" / "nanochat"
VOCAB_SIZE = 4096
LIMIT_S = 3600.0
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True)
class Case:
    """A program as its author runs it. losses: those of its steps, out of what rank 0 printed."""

    name: str
    folder: Path
    words: tuple[str, ...]
    losses: Callable[[str], list[float]]
    env: tuple[str, ...] = ()


def printed_as_json(said: str) -> list[float]:
    line = next(line for line in said.splitlines() if line.startswith('{"'))
    found: list[float] = json.loads(line)["losses"]
    return found


def printed_by_nanochat(said: str) -> list[float]:
    return [round(step.loss, 4) for step in side.read_steps(said.splitlines())]


def cases(nanochat: Path | None) -> list[Case]:
    found = [
        Case("ddp", PROGRAMS, ("ddp.py",), printed_as_json),
        Case("accelerate", PROGRAMS, ("accelerate_loop.py",), printed_as_json),
    ]
    if nanochat is not None:
        env = (f"NANOCHAT_BASE_DIR={BASE}",)
        words = tuple(train_words(ranks=2))
        found.append(Case("nanochat", nanochat, words, printed_by_nanochat, env))
    return found


def run(lab: Lab, case: Case) -> dict[str, Any]:
    """`yoked run` of a program on both hosts; its losses, and whether the weights agreed."""
    settings = [*case.env, f"PYTHONPATH={HERE / 'checksums'}", f"CHECKSUMS={SUMS}/{case.name}"]
    words = ["run", "--fleet", str(lab.fleet_file), "--run", case.name]
    words += [word for setting in settings for word in ("--env", setting)]
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, "--", *case.words],
        cwd=case.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ended.returncode != 0:
        raise SystemExit(
            f"{case.name} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )
    found = weights(lab, case.name)
    losses = case.losses(ended.stdout)
    print(f"{case.name}: {found.verdict}; loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    return {
        "took_s": round(time.monotonic() - began_s, 1),
        "substituted": [line for line in ended.stderr.splitlines() if line.startswith("yoked: ")],
        "losses": losses,
        "weights": asdict(found),
        "fine": found.equal and found.changed == found.steps == len(losses),
    }


def weights(lab: Lab, run: str) -> Comparison:
    """The checksums of a run's ranks, each from its host. Raises LabError where one has none."""
    files = (
        lab.host(host.name).read_text(f"{SUMS}/{run}/{rank}.jsonl")
        for rank, host in enumerate(lab.topology.hosts)
    )
    return compare([checksums(text) for text in files])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("ddp", "accelerate", "nanochat"), action="append")
    parser.add_argument("--nanochat", type=Path, help="a checkout of nanochat")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "results.json")
    options = parser.parse_args()
    nanochat = options.nanochat and options.nanochat.resolve()
    chosen = [case for case in cases(nanochat) if case.name in (options.only or [case.name])]
    if any(case.name == "nanochat" for case in chosen):
        prepare(nanochat, BASE, 2, VOCAB_SIZE)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["machine"] = side.machine_facts()
    with tempfile.TemporaryDirectory(prefix="yoked-bench-") as state:
        os.environ["YOKED_STATE"] = state
        with Lab.up(load("two-hosts-1gbe"), name="unmodified", tethered=True) as lab:
            for case in chosen:
                results[case.name] = run(lab, case)
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(results[case.name]["fine"] for case in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

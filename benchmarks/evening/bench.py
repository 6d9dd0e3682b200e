"""Hosts that are a little unequal: live rows alone, and with handovers of lm_head work, in turns.

usage: bench.py [--speeds 1:0.93] [--tokens 16384] [--link 1gbit] [--sync exact] [--steps 10]
                [--rounds 2] [--smoke]

A round is: both hosts with `--balance rows`, both with `--balance on`, and each host alone, both at
the same time; the hosts alone also come first. As root; each configuration has a file in results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "two_hosts"), str(HERE.parent)]

import nanochat_side as side  # noqa: E402
from stage import WARM_UP_STEPS, Run, Stage  # noqa: E402

from yoked.journal import read  # noqa: E402

RESULTS = HERE / "results"
# Rows and handovers find their place in these; they are not looked at.
SETTLE_STEPS = 8
ARMS = {"whole rows": "rows", "evened out": "on"}


def together(stage: Stage, balance: str, steps: int) -> dict[str, Any]:
    """A run of both hosts: its steps after the first SETTLE_STEPS, and what was moved."""
    options = stage.options
    options.train_flags = [f"--balance={balance}"]
    run = stage.together(options.sync, SETTLE_STEPS + steps)
    folder = max((stage.scratch / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    lines = [line for line in read(folder / "metrics.jsonl") if "dt_s" in line]
    changes = [event for event in read(folder / "events.jsonl") if event["event"] == "shares"]
    found = asdict(run)
    found["step_s"] = run.step_s[SETTLE_STEPS - 1 :]
    found["rows"] = [tokens // options.seq_len for tokens in lines[-1]["tokens"]]
    found["handovers"] = [(event["step"], event["handovers"]) for event in changes]
    for name in ("compute_s", "wait_s", "comm_s"):
        by_rank = zip(*(line[name] for line in lines[SETTLE_STEPS:]), strict=True)
        found[name] = [statistics.median(values) for values in by_rank]
    return found


def measure(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds. of_sum: tokens a second over those of both alone, before and after."""
    stage.both_alone(WARM_UP_STEPS)
    stage.together(options.sync, WARM_UP_STEPS)
    after = stage.both_alone(options.steps)
    rounds = []
    for number in range(options.rounds):
        before, arms = after, {}
        for arm, balance in ARMS.items():
            arms[arm] = together(stage, balance, options.steps)
        after = stage.both_alone(options.steps)
        alone = _sum(before), _sum(after)
        for arm, found in arms.items():
            found["tokens_per_second"] = options.tokens / statistics.median(found["step_s"])
            found["of_sum"] = found["tokens_per_second"] / statistics.mean(alone)
            print(
                f"round {number + 1}  {arm:10} {found['tokens_per_second']:6.0f} tokens/s, "
                f"{found['of_sum']:.1%} of the sum of both alone, rows "
                f"{':'.join(map(str, found['rows']))}, handed over {found['handovers'][-1:]}",
                flush=True,
            )
        faster = arms["whole rows"]["tokens_per_second"], arms["evened out"]["tokens_per_second"]
        print(f"round {number + 1}  evened out over whole rows: {faster[1] / faster[0]:.3f}")
        rounds.append({"arms": arms, "alone": [asdict(run) for run in (*before, *after)]})
    return {
        "configuration": {
            name: getattr(options, name)
            for name in ("link", "tokens", "sync", "seq_len", "rows", "steps", "speeds", "dtype")
        },
        "machine": side.machine_facts(),
        "ratios": [
            round_["arms"]["evened out"]["tokens_per_second"]
            / round_["arms"]["whole rows"]["tokens_per_second"]
            for round_ in rounds
        ],
        "rounds": rounds,
    }


def _sum(runs: list[Run]) -> float:
    return sum(run.tokens_per_second for run in runs)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--link", default="1gbit", help="rate of the network, as tc writes it")
    parser.add_argument("--tokens", type=int, default=16384, help="tokens a step")
    parser.add_argument("--sync", default="exact")
    parser.add_argument("--steps", type=int, default=10, help="of each run that count")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--speeds", default="1:0.93", help="of the hosts")
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    options = parser.parse_args(argv)
    options.depth, options.seq_len, options.rows, options.dtype = 4, 512, 2, "float32"
    options.data, options.nanochat = None, None
    if options.smoke:
        options.depth, options.seq_len, options.tokens = 2, 128, 2048
        options.rounds, options.steps = 1, 4
    options.speeds = [float(speed) for speed in options.speeds.split(":")]
    return options


def main() -> int:
    options = parse()
    # The hosts have a /tmp of their own, and are to see what lies here.
    with tempfile.TemporaryDirectory(prefix="yoked-two-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        side.write_shards(scratch / "text", side.into_shards(side.embedded_paragraphs()))
        options.data = str(scratch / "text")
        with Stage.up(scratch, options) as stage:
            options.train_flags = []
            result = measure(stage, options)
    if not options.smoke:
        RESULTS.mkdir(exist_ok=True)
        speeds = "to".join(f"{speed:g}" for speed in options.speeds)
        name = f"{options.link}-{options.tokens}-{options.sync}-{speeds}.json"
        (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

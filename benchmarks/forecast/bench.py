"""What `yoked plan` says against what training then does, over twelve combinations.

usage: bench.py [--late] [--only NAME] [--steps 12] [--rounds 2] [--smoke]

For each pair of hosts a lab is brought up, probed once as a person would, and nothing is fitted:
every combination of it is planned, then trained. What the plan chooses for so many tokens is
compared with what `--sync auto` decides. With --late, twelve others whose gradients are used a step
late. As root, on two cores, in a quiet hour.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "two_hosts")]

import nanochat_side as side  # noqa: E402
import stage as two_hosts  # noqa: E402

from yoked.costmodel.work import LATE, LATE_HEAD, is_late  # noqa: E402

RESULTS = HERE / "results"
MEDIAN_ALLOWED, LATE_MEDIAN_ALLOWED, WORST_ALLOWED = 0.05, 0.08, 0.15


@dataclass(frozen=True)
class Pair:
    """Two lab hosts; each of `asked`: strategy and tokens of a step."""

    name: str
    link: str
    speeds: tuple[float, float]
    asked: tuple[tuple[str, int], ...]


PAIRS = (
    Pair("1 Gbit/s", "1gbit", (1, 1), (("exact", 2048), ("bf16", 2048), ("exact", 16_384))),
    Pair("300 Mbit/s, 2:1", "300mbit", (2, 1), (("exact", 2048), ("int8", 2048), ("int4", 8192))),
    Pair("100 Mbit/s", "100mbit", (1, 1), (("exact", 2048), ("int8", 2048), ("bf16", 16_384))),
    Pair("1 Gbit/s, 4:1", "1gbit", (4, 1), (("exact", 2048), ("bf16", 8192), ("exact", 16_384))),
)
# Of `late-head` and `late` in any payload dtype the fastest that the plan shows: it shows no delay
# that gains less than 3%, and for how many tokens one does is the machine's matter.
LATE_PAIRS = (
    Pair("20 Mbit/s", "20mbit", (1, 1), ((LATE_HEAD, 8192), (LATE_HEAD, 16_384), (LATE, 16_384))),
    Pair("50 Mbit/s", "50mbit", (1, 1), ((LATE, 4096), (LATE, 8192), (LATE_HEAD, 16_384))),
    Pair("50 Mbit/s, 2:1", "50mbit", (2, 1), ((LATE_HEAD, 4096), (LATE, 8192), (LATE, 16_384))),
    Pair("30 Mbit/s", "30mbit", (1, 1), ((LATE, 4096), (LATE_HEAD, 8192), (LATE_HEAD, 16_384))),
)


@dataclass(frozen=True)
class Case:
    """One combination. error: of the forecast, 0.1: it promised a tenth too much.

    planned, auto: compression and lm_head that the plan and `--sync auto` choose for these tokens.
    """

    pair: str
    sync: str
    tokens: int
    forecast: float
    measured: float
    predicted: dict[str, Any]
    measured_s: dict[str, list[float]]
    planned: list[str]
    auto: list[str]

    @property
    def error(self) -> float:
        return self.forecast / self.measured - 1


def run_pair(pair: Pair, options: argparse.Namespace, scratch: Path) -> list[Case]:
    """Probe the pair once, then plan and train each combination."""
    given = argparse.Namespace(**vars(options), link=pair.link, speeds=pair.speeds, tokens=2048)
    cases = []
    with two_hosts.Stage.up(scratch, given) as stage:
        fleet = ["--fleet", str(stage.lab.fleet_file), "--json"]
        model = [flag for flag in stage.model_flags(0) if "batch" not in flag and "num" not in flag]
        rows = f"--device-batch-size={given.rows}"
        stage.together("exact", two_hosts.WARM_UP_STEPS)
        yoked("probe", *fleet, *model, rows, scratch=scratch)
        for sync, tokens in options.asked or pair.asked:
            given.tokens = tokens
            batch = f"--total-batch-size={tokens}"
            plan = yoked(
                "plan", *fleet, *model, rows, batch, f"--dtype={given.dtype}", scratch=scratch
            )
            cases.append(measure(stage, pair, plan, sync, tokens, options, scratch))
            print(line(cases[-1]), flush=True)
    return cases


def measure(
    stage: two_hosts.Stage,
    pair: Pair,
    plan: dict[str, Any],
    sync: str,
    tokens: int,
    options: argparse.Namespace,
    scratch: Path,
) -> Case:
    """Train a combination some times; the median counts."""
    shown = {each["sync"]: each for each in plan["candidates"]}  # the fastest first
    if options.late:
        delayed = [each for each in shown if is_late(each)]
        if not delayed:
            raise SystemExit(
                f"{pair.name}, {tokens} tokens: the plan shows no delay, but {[*shown]}"
            )
        (sync, *_) = [each for each in delayed if each.partition(":")[0] == sync] or delayed
    said = shown[sync]
    runs = [stage.together(sync, options.steps) for _ in range(options.rounds)]
    words = stage._train(stage._name("auto"), options.steps, two_hosts.SEED)
    fleet = ("--fleet", str(stage.lab.fleet_file))
    decided = yoked(*words, "--sync=auto", "--dry-run", *fleet, scratch=scratch)["choices"]
    auto = {each["name"]: each["value"] for each in decided}
    return Case(
        pair=pair.name,
        sync=sync,
        tokens=tokens,
        forecast=said["predicted"]["tokens_per_second"],
        measured=statistics.median(run.tokens_per_second for run in runs),
        predicted={**said["predicted"], "shares": said["shares"]},
        measured_s={
            name: getattr(runs[-1], name) for name in ("step_s", "compute_s", "comm_s", "wait_s")
        },
        # `chosen` may leave a host at home; the run has all of them.
        planned=next(
            [each["sync"], each["lm_head"]]
            for each in plan["candidates"]
            if each["sync"] == plan["chosen"]["sync"]
        ),
        auto=[auto[name] for name in ("sync", "lm_head")],
    )


def yoked(*words: str, scratch: Path) -> dict[str, Any]:
    """A command's JSON."""
    done = subprocess.run(
        [*two_hosts.YOKED, *words], cwd=scratch, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"yoked {' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def line(case: Case) -> str:
    same = "" if case.auto == case.planned else f"; plan {case.planned}, auto {case.auto}"
    return (
        f"{case.pair:16} {case.sync:14} {case.tokens:6} tokens a step: forecast "
        f"{case.forecast:6.0f}, measured {case.measured:6.0f} tokens/s, off {case.error:+.1%}{same}"
    )


def draw(cases: list[Case], path: Path) -> None:
    """Forecast against measured, both logarithmic; the band is 20%."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 6))
    ends = [0.8 * min(c.measured for c in cases), 1.25 * max(c.measured for c in cases)]
    axes.fill_between(ends, [0.8 * e for e in ends], [1.2 * e for e in ends], alpha=0.15)
    axes.plot(ends, ends, linewidth=1)
    for pair in dict.fromkeys(case.pair for case in cases):
        mine = [case for case in cases if case.pair == pair]
        axes.scatter([c.measured for c in mine], [c.forecast for c in mine], label=pair)
    axes.set(xscale="log", yscale="log", xlabel="measured tokens/s", ylabel="forecast tokens/s")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--late", action="store_true", help="gradients that are a step late")
    parser.add_argument("--only", help="one pair by its name, such as '1 Gbit/s'")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    options = parser.parse_args()
    options.depth, options.seq_len, options.rows = 4, 512, 2
    options.train_flags = ["--warmup-steps=1"] if options.late else []  # no delay before
    options.asked = None
    if options.smoke:
        options.depth, options.seq_len, options.steps, options.rounds = 2, 128, 5, 1
        options.asked = (("exact", 512),)
    return options


def main() -> int:
    options = parse()
    every = LATE_PAIRS if options.late else PAIRS
    pairs = [pair for pair in every if options.only in (None, pair.name)]
    cases: list[Case] = []
    for pair in pairs[:1] if options.smoke else pairs:
        # The hosts have a /tmp of their own, and are to see what lies here.
        with tempfile.TemporaryDirectory(prefix="yoked-forecast-", dir="/var/tmp") as folder:
            scratch = Path(folder).resolve()
            side.write_shards(scratch / "text", side.into_shards(side.embedded_paragraphs()))
            options.data = str(scratch / "text")
            before = dict(os.environ)
            try:
                cases += run_pair(pair, options, scratch)
            finally:
                os.environ.clear()
                os.environ.update(before)
    errors = [abs(case.error) for case in cases]
    median, worst = statistics.median(errors), max(errors)
    alike = sum(case.auto == case.planned for case in cases)
    allowed = LATE_MEDIAN_ALLOWED if options.late else MEDIAN_ALLOWED
    print(f"median error {median:.1%} (allowed {allowed:.0%}), worst {worst:.1%} (allowed 15%)")
    print(f"plan and --sync auto choose alike in {alike} of {len(cases)}")
    if options.smoke:
        return 0
    result = {
        "machine": side.machine_facts(),
        "dtype": options.dtype,
        "median_error": median,
        "worst_error": worst,
        "chosen_alike": alike,
        "cases": [{**asdict(case), "error": case.error} for case in cases],
    }
    RESULTS.mkdir(exist_ok=True)
    name = f"late-{options.dtype}" if options.late else options.dtype
    (RESULTS / f"results-{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(cases, RESULTS / f"forecast-{name}.png")
    fine = median <= allowed and worst <= WORST_ALLOWED and alike == len(cases)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

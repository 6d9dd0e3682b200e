"""Mechanisms of the trainer that may go, each with and without, in turn: A B C A B C.

usage: ab.py SOURCE [--after COMMIT] [--only NAME …] [--rounds 5] [--add] [--list]

SOURCE: a checkout of 0cc88aa, made by `make setup`, which this changes: an arm is a set of flags
and of texts to replace under src/, or all of src/ as a later commit has it. The last commit that
has all mechanisms is 0cc88aa. Run it with SOURCE's own Python, as root, on a quiet machine; each
comparison has a file in results/. --after: the comparisons of 0cc88aa with that commit instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = ("compute_s", "comm_s", "wait_s")

Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Arm:
    """flags: of `yoked train`; edits: file under src/yoked, text, and what takes its place.

    commit: src/ is taken from it.
    """

    flags: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    commit: str = "HEAD"


@dataclass(frozen=True)
class Comparison:
    """The first arm is today's. settle: steps that are not looked at, before `steps` that are.

    alone: both hosts train at the same time, each by itself.
    """

    tokens: int
    arms: dict[str, Arm]
    steps: int
    speeds: str = "1:1"
    link: str = "1gbit"
    sync: str = "exact"
    settle: int = 3
    depth: int = 4
    dtype: str = "float32"
    alone: bool = False
    extra: tuple[str, ...] = field(default=())


ASLEEP = ("--waiting=asleep",)
NO_BATCH = ("train/session.py", "    batch_network_threads()\n", "")
# AdamW updates rows that no rank used after Muon, with all others.
ONE_ADAMW_PASS = (
    "train/optim/optimizer.py",
    "self._began = kernels.usable(self.layout.parameters[some].data)",
    "self._began = False",
)
WHOLE_ROWS = Arm(("--lm-head=whole", "--balance=rows"))
VOCAB_PARALLEL = Arm(
    ("--lm-head=divided",),
    (
        ("timeline/division.py", "MOST_TOKENS = 4096", "MOST_TOKENS = 16384"),
        ("timeline/division.py", "LEAST_IDS_PER_TOKEN = 8", "LEAST_IDS_PER_TOKEN = 2"),
        ("timeline/deferral.py", "MOST_DEFERRED = 8", "MOST_DEFERRED = 16"),
        ("timeline/deferral.py", "MOST_BYTES = 1_000_000_000", "MOST_BYTES = 4_000_000_000"),
    ),
)
NONE_DEFERRED = Arm((), (("timeline/deferral.py", "MOST_DEFERRED = 8", "MOST_DEFERRED = 1"),))
WHOLE = ("--lm-head=whole",)
ONE_LIST_OF_ROWS = ("timeline/deferral.py", "first = -(-2 * waiting // 3)", "first = 0")

LM_HEAD = {"auto": Arm(), "replicated, whole rows": WHOLE_ROWS, "vocab-parallel": VOCAB_PARALLEL}
EVENING = {"on": Arm(WHOLE), "rows": WHOLE_ROWS}

COMPARISONS = {
    "step-2048": Comparison(
        2048,
        {
            "today": Arm(),
            "asleep": Arm(ASLEEP),
            "no SCHED_BATCH": Arm((), (NO_BATCH,)),
            "one AdamW pass": Arm((), (ONE_ADAMW_PASS,)),
            "all three": Arm(ASLEEP, (NO_BATCH, ONE_ADAMW_PASS)),
        },
        steps=20,
    ),
    "step-16384": Comparison(
        16384,
        {
            "today": Arm(),
            "asleep": Arm(ASLEEP),
            "one AdamW pass": Arm((), (ONE_ADAMW_PASS,)),
            "all three": Arm(ASLEEP, (NO_BATCH, ONE_ADAMW_PASS)),
        },
        steps=6,
        settle=2,
    ),
    "lm-head-1-1-8192": Comparison(8192, LM_HEAD, steps=8),
    "lm-head-2-1-8192": Comparison(8192, LM_HEAD, steps=8, speeds="2:1"),
    "lm-head-4-1-16384": Comparison(16384, LM_HEAD, steps=4, settle=8, speeds="4:1"),
    "lm-head-2-1-16384": Comparison(16384, LM_HEAD, steps=4, settle=8, speeds="2:1"),
    "lm-head-4-1-16384-100mbit-int8": Comparison(
        16384, LM_HEAD, steps=4, settle=8, speeds="4:1", link="100mbit", sync="int8"
    ),
    "evening-93-16384": Comparison(16384, EVENING, steps=6, speeds="1:0.93"),
    "evening-75-16384": Comparison(16384, EVENING, steps=6, speeds="1:0.75"),
    "deferral-100mbit-int8": Comparison(
        16384,
        {"today": Arm(WHOLE), "none deferred": Arm(WHOLE, NONE_DEFERRED.edits)},
        steps=5,
        link="100mbit",
        sync="int8",
        settle=2,
    ),
    "deferral-300mbit-exact": Comparison(
        16384,
        {
            "today": Arm(WHOLE),
            "none deferred": Arm(WHOLE, NONE_DEFERRED.edits),
            "two messages of rows": Arm(WHOLE, (ONE_LIST_OF_ROWS,)),
        },
        steps=5,
        link="300mbit",
        settle=2,
    ),
}


def before_and_after(commit: str) -> dict[str, Comparison]:
    """Cases of `solo`, `two_hosts` and `balance`, trained by SOURCE and by a later commit."""
    arms = {"before": Arm(), "after": Arm(commit=commit)}
    return {
        "whole-alone-float32": Comparison(2048, arms, steps=12, alone=True),
        "whole-alone-bfloat16": Comparison(2048, arms, steps=12, alone=True, dtype="bfloat16"),
        "whole-1gbit-2048": Comparison(2048, arms, steps=20),
        "whole-1gbit-16384": Comparison(16384, arms, steps=6),
        "whole-100mbit-16384-int8": Comparison(
            16384, arms, steps=6, link="100mbit", sync="int8"
        ),
        "whole-4-1-16384": Comparison(16384, arms, steps=4, settle=8, speeds="4:1"),
        "whole-2-1-16384": Comparison(16384, arms, steps=4, settle=8, speeds="2:1"),
    }  # fmt: skip


def prepare(source: Path, arm: Arm) -> None:
    """The checkout with this arm's commit and edits, and no others."""
    restore = ("restore", "--quiet", f"--source={arm.commit}", "--staged", "--worktree")
    subprocess.run(["git", "-C", source, *restore, "--", "src"], check=True)
    for name, old, new in arm.edits:
        path = source / "src" / "yoked" / name
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{path} has {text.count(old)} times {old!r}: not at 0cc88aa")
        path.write_text(text.replace(old, new))


def compare(source: Path, name: str, about: Comparison, rounds: int, add: bool) -> None:
    """Rounds of all arms in turn, which begin with another arm each time."""
    import nanochat_side as side
    from stage import Stage

    path = HERE / "results" / f"{name}.json"
    found: list[dict[str, Any]] = []
    if add and path.exists():
        found = json.loads(path.read_text())["rounds"]
    options = argparse.Namespace(
        depth=about.depth, seq_len=512, rows=2, tokens=about.tokens, dtype=about.dtype,
        link=about.link, speeds=[float(speed) for speed in about.speeds.split(":")],
        train_flags=[], nanochat=None, smoke=False,
    )  # fmt: skip
    arms = list(about.arms)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="yoked-ab-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        options.data = str(scratch / "text")
        side.write_shards(Path(options.data), side.into_shards(side.embedded_paragraphs()))
        with Stage.up(scratch, options) as stage:
            for arm in arms:  # what is compiled and sent once
                train(source, stage, about, arm, 3)
            for _ in range(rounds):
                first = len(found) % len(arms)
                turn: dict[str, Any] = {}
                for arm in arms[first:] + arms[:first]:
                    runs = train(source, stage, about, arm, about.settle + about.steps)
                    turn[arm] = {
                        "step_s": [s for run in runs for s in run.step_s[about.settle - 1 :]],
                        **{name: [getattr(run, name) for run in runs] for name in PARTS},
                        "last_loss": runs[0].losses[-1],
                    }
                found.append(turn)
                result = {"machine": side.machine_facts(), "comparison": describe(about)}
                result |= {"summary": summarise(found, arms), "rounds": found}
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(result, indent=1) + "\n")
                medians = "  ".join(
                    f"{arm} {statistics.median(turn[arm]['step_s']):.3f} s" for arm in arms
                )
                print(f"{name}, round {len(found)}: {medians}", flush=True)
    prepare(source, Arm())
    print(table(name, result["summary"]), flush=True)


def train(source: Path, stage: Any, about: Comparison, arm: str, steps: int) -> list[Any]:
    """The runs of one arm (stage.Run): one of both hosts, or one of each."""
    prepare(source, about.arms[arm])
    stage.options.train_flags = [*about.extra, *about.arms[arm].flags, "--save-every=-1"]
    return stage.both_alone(steps) if about.alone else [stage.together(about.sync, steps)]


def describe(about: Comparison) -> dict[str, Any]:
    known = {name: value for name, value in vars(about).items() if name != "arms"}
    return known | {"arms": {name: vars(arm) for name, arm in about.arms.items()}}


def summarise(rounds: list[dict[str, Any]], arms: list[str]) -> dict[str, Any]:
    """By arm: today's median step over its own, by round; above 1: the arm is faster.

    fast: the same of the fastest fifth of all steps. low, high: of the rounds' middle half.
    """
    today = arms[0]
    summary: dict[str, Any] = {}
    for arm in arms:
        steps_s = [step_s for turn in rounds for step_s in turn[arm]["step_s"]]
        todays_s = [step_s for turn in rounds for step_s in turn[today]["step_s"]]
        ratios = [
            statistics.median(turn[today]["step_s"]) / statistics.median(turn[arm]["step_s"])
            for turn in rounds
        ]
        low, _, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        summary[arm] = {
            "median_s": statistics.median(steps_s),
            "fast_s": fastest_fifth(steps_s),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
            "fast": fastest_fifth(todays_s) / fastest_fifth(steps_s),
        }
    return summary


def fastest_fifth(steps_s: list[float]) -> float:
    return statistics.quantiles(steps_s, n=5, method="inclusive")[0]


def table(name: str, summary: dict[str, Any]) -> str:
    lines = [f"{name}: arm, median step, speed against the first (middle half; fastest fifth)"]
    lines += [
        f"  {arm:24} {each['median_s']:.3f} s  {each['ratio']:.3f} "
        f"({each['low']:.3f} to {each['high']:.3f}; {each['fast']:.3f})"
        for arm, each in summary.items()
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, nargs="?", help="a checkout of 0cc88aa")
    parser.add_argument("--after", metavar="COMMIT", help="compare it, and no mechanism by itself")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="to the rounds that are kept")
    parser.add_argument("--list", action="store_true", help="the comparisons; nothing is run")
    options = parser.parse_args()
    known = before_and_after(options.after) if options.after else COMPARISONS
    if options.list:
        print("\n".join(known))
        return 0
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    if options.source is None or not (options.source / "src/yoked/timeline/evening.py").exists():
        parser.error("SOURCE: a checkout of 0cc88aa is needed, which has all mechanisms")
    source = options.source.resolve()
    if not Path(sys.executable).is_relative_to(source):
        parser.error(f"run it with {source}/.venv/bin/python: the hosts use that one")
    sys.path[:0] = [str(source / "benchmarks" / "two_hosts"), str(source / "benchmarks")]
    try:
        for name in options.only or known:
            compare(source, name, known[name], options.rounds, options.add)
    finally:
        prepare(source, Arm())
    return 0


if __name__ == "__main__":
    sys.exit(main())

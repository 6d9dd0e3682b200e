"""The first hour: from yoked's wheel to a trained step on two bare hosts, with faults, as typed.

usage: bench.py --wheels FOLDER [--mode typed|asked|json] [--trials 20] [--seed 1] [--hands]
                [--python PYTHON] [--summary]

A trial brings up a lab of two bare hosts (ssh, a Python, no caches, no torch, no index), breaks up
to three things of the doctor's list that a line can mend, and types at a terminal: the wheel's
installation, `yoked up`, the line with which `up` ends, `yoked stop`, `yoked bench`. --mode json
does the same by a script that reads nothing but --json; --mode asked answers the questions instead
of --yes. --hands breaks one thing more, which only hands can mend, and does what is said. As root.

FOLDER has the wheels of what hosts need, as by `pip download`. Each trial has a file in results/,
with its whole transcript; one that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from faults import HANDS, draw  # noqa: E402
from trial import Trial, build_wheel, disk_free_bytes, run, stage  # noqa: E402

RESULTS = HERE / "results"
_ROOM_BYTES = 5_000_000_000
MOST_S, MOST_WITHOUT_FAULTS_S, MOST_LINES = 600.0, 240.0, 5


def name_of(mode: str, seed: int, *, hands: bool) -> str:
    return f"{mode}-{'hands-' if hands else ''}{seed:03}.json"


def trials(options: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="yw-") as folder:
        wheel = build_wheel(Path(folder))
        for seed in range(options.seed, options.seed + options.trials):
            path = RESULTS / name_of(options.mode, seed, hands=options.hands)
            if path.exists():
                continue
            if disk_free_bytes() < _ROOM_BYTES:
                raise SystemExit("less than 5 GB are free: nothing more is tried")
            hands = [random.Random(seed).choice(HANDS)] if options.hands else []
            trial = Trial(seed, options.mode, draw(seed), hands)
            with stage(wheel, options.wheels.resolve(), options.python) as own:
                run(own, trial)
            path.write_text(json.dumps(asdict(trial), indent=1) + "\n")
            print(line_of(trial), flush=True)


def line_of(trial: Trial) -> str:
    wrong = ", ".join([*trial.faults, *trial.hands]) or "nothing"
    word = "fine " if trial.ok else "MISS "
    figures = f"planned {trial.planned}, measured {trial.measured}, load {trial.load}"
    return f"{word} {trial.mode} {trial.seed} ({wrong}): {trial.times_s}, {figures} {trial.why}"


def summary() -> None:
    """What all trials came to."""
    found = [Trial(**json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]
    for mode, hands in sorted({(each.mode, bool(each.hands)) for each in found}):
        own = [each for each in found if (each.mode, bool(each.hands)) == (mode, hands)]
        good = [each for each in own if each.ok]
        print(f"{mode}{' with hands' if hands else ''}: {len(good)} of {len(own)} succeed")
        if good:
            total = [each.times_s["total"] for each in good]
            quick = [each.times_s["total"] for each in good if not each.faults and not each.hands]
            print(f"  seconds in all: median {statistics.median(total):.0f}, most {max(total):.0f}")
            print(f"  without a fault: most {max(quick, default=0):.0f}")
            print(f"  most typed lines: {max(len(each.typed) for each in good)}")
            print(f"  measured speed-up: {[each.measured for each in good]}")
            print(f"  load at the beginning: {[round(each.load[0], 1) for each in good]}")
        for each in own:
            if not each.ok:
                print(f"  miss: seed {each.seed}, {each.faults + each.hands}: {each.why[:300]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--mode", choices=("typed", "asked", "json"), default="typed")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hands", action="store_true")
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if options.summary:
        summary()
        return 0
    if options.wheels is None or not options.wheels.is_dir():
        parser.error("--wheels: name a folder with the wheels of what hosts need")
    with tempfile.TemporaryDirectory(prefix="yb-") as state:
        # The person's own labs go on.
        os.environ["YOKED_STATE"] = state
        trials(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

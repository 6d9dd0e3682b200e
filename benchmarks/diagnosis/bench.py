"""Why a run stands, told by its hosts: 19 classes of faults at random moments, and what was said.

usage: bench.py [--classes a,b] [--trials 10] [--seed 1] [--program turn|trainer|ddp|both]
                [--results FOLDER] [--summary]

A trial starts a run on two hosts of a lab under `--on-fault stop`, breaks something at a random
moment, and reads what the hosts say. Each has a file in results/; one that is there is not made
again. turn: one of the two programs a seed. --summary prints the table of all that are there. As
root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from classes import CLASSES, PROGRAMS, FaultClass, Program, class_named  # noqa: E402
from stage import Stages  # noqa: E402
from trial import Trial, run_trial, to_json  # noqa: E402

RESULTS = HERE / "results"
# After these a host is not what it was.
_NEW_LAB_AFTER = ("host-killed", "host-suspended", "disk-stands")


def trials(options: argparse.Namespace, chosen: Sequence[FaultClass]) -> None:
    """One of each class and program, then the next seed: a part of them is a table, too."""
    stages = Stages()
    try:
        for seed in range(options.seed, options.seed + options.trials):
            for one in chosen:
                for program in programs_of(one, seed, options.program):
                    make(stages, one, program, seed, options.results)
    finally:
        stages.close()


def programs_of(one: FaultClass, seed: int, chosen: str) -> Sequence[Program]:
    """turn: one program a seed, each in its turn."""
    if chosen == "turn":
        return [one.programs[seed % len(one.programs)]]
    return [each for each in one.programs if chosen in (each, "both")]


def make(stages: Stages, one: FaultClass, program: Program, seed: int, results: Path) -> None:
    """Make a trial, unless it is there; one that did not come about is begun once more."""
    path = results / f"{one.name}-{program}-{seed:03}.json"
    for _ in range(2):
        if not path.exists():
            attempt(stages, one, Trial(one.name, program, seed), path)


def attempt(stages: Stages, one: FaultClass, trial: Trial, path: Path) -> None:
    own = stages.take()
    run = None
    try:
        run = run_trial(own, one, trial)
    finally:
        again = one.name not in _NEW_LAB_AFTER and not trial.trouble
        stages.give_back(own, run, again=again)
    if not trial.trouble:
        path.write_text(to_json(trial))
    print(line_of(trial), flush=True)


def line_of(trial: Trial) -> str:
    if trial.trouble:
        return f"NONE {trial.fault} {trial.program} {trial.seed}: {trial.trouble}"
    fine = trial.right_host and trial.right_code and trial.right_rank and not trial.wrong_hosts
    rank = "" if trial.told_rank is None else f" rank {trial.told_rank}"
    said = f"{trial.code or 'nothing'} on {','.join(trial.told_hosts)}{rank} {trial.certainty}"
    times = f"{trial.verdict_s} s, sure {trial.sure_s} s, freed {trial.freed_s} s"
    times += f", took {trial.took_s} s"
    line = f"{'fine' if fine else 'MISS'} {trial.fault} {trial.program} {trial.seed} "
    line += f"({trial.host}: {trial.done}): {said}, {times}, load {trial.load}"
    for told in trial.told[1:]:
        line += f"\n       {told.by}: {told.code} on {told.hosts} {told.rank} {told.certainty}"
    return line


def summary(results: Path) -> str:
    """The table of all trials that are there."""
    head = ["fault", "program", "trials", "right host", "right cause", "right rank"]
    head += ["median, s", "95%, s", "sure, s", "freed, s", "wrong hosts", "else told", "beside"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for one in CLASSES:
        for program in one.programs:
            files = sorted(results.glob(f"{one.name}-{program}-*.json"))
            if found := [json.loads(path.read_text()) for path in files]:
                lines.append(row_of(one, program, found))
    return "\n".join(lines)


def row_of(one: FaultClass, program: str, found: Sequence[dict[str, Any]]) -> str:
    seconds = sorted(each["verdict_s"] for each in found if each["verdict_s"] is not None)
    sure = [each["sure_s"] for each in found if each["sure_s"] is not None]
    freed = [each["freed_s"] for each in found if each["freed_s"] is not None]
    others = sorted({each["code"] or "nothing" for each in found if not each["right_code"]})
    cells = [
        one.name,
        program,
        str(len(found)),
        *(str(sum(each[key] for each in found)) for key in ("right_host", "right_code")),
        str(sum(each["right_rank"] for each in found)),
        f"{statistics.median(seconds):.1f}" if seconds else "-",
        f"{percentile(seconds, 0.95):.1f}" if seconds else "-",
        f"{statistics.median(sure):.1f}" if sure else "-",
        f"{max(freed):.2f}" if freed else "-",
        str(sum(each["wrong_hosts"] for each in found)),
        ", ".join(others),
        str(sum(bool(each["beside"]) for each in found)),
    ]
    return f"| {' | '.join(cells)} |"


def percentile(ordered: Sequence[float], part: float) -> float:
    """The least value that so large a part does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", default=",".join(each.name for each in CLASSES))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", choices=("turn", *PROGRAMS, "both"), default="turn")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    # What was begun is taken down, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not options.summary:
        chosen = [class_named(name) for name in options.classes.split(",")]
        with tempfile.TemporaryDirectory(prefix="yb-") as state:
            # The person's own labs and runs go on.
            os.environ["YOKED_STATE"] = state
            trials(options, chosen)
    print(summary(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

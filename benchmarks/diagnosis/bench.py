"""Why a run stands, told by its hosts: 19 classes of faults at random moments, and what was said.

usage: bench.py [--classes a,b] [--trials 10] [--seed 1] [--program turn|trainer|ddp|both|nanochat]
                [--nanochat CHECKOUT] [--hosts 3] [--results FOLDER] [--seen FOLDER] [--summary]

A trial starts a run on two hosts of a lab under `--on-fault stop`, or on three, breaks something at
a random moment, and reads what the hosts say. Each has a file in results/; one that is there is not
made again. turn: one of the two programs a seed. --seen keeps what the hosts judged by, as
tests/golden/diagnosis has it. --summary prints the table of all that are there.
As root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from classes import (  # noqa: E402
    CLASSES,
    OF_NANOCHAT,
    ON_THREE_HOSTS,
    PROGRAMS,
    FaultClass,
    Program,
    class_named,
)
from nanochat_program import Nanochat  # noqa: E402
from stage import SOURCES, TOPOLOGIES, YOKED, Stages, own_state  # noqa: E402
from trial import Trial, run_trial, to_json  # noqa: E402

RESULTS = HERE / "results"
# After these a host is not what it was.
_NEW_LAB_AFTER = ("host-killed", "host-suspended", "disk-stands")


def trials(options: argparse.Namespace, chosen: Sequence[FaultClass]) -> None:
    """One of each class and program, then the next seed: a part of them is a table, too."""
    nanochat = None
    if options.program == "nanochat":
        nanochat = Nanochat.open(options.nanochat, options.hosts)
        nanochat.warm_up(YOKED, {"PYTHONPATH": str(SOURCES)})
    stages = Stages(options.hosts, nanochat)
    try:
        for seed in range(options.seed, options.seed + options.trials):
            for one in chosen:
                for program in programs_of(one, seed, options.program):
                    make(stages, one, program, seed, options)
    finally:
        stages.close()


def programs_of(one: FaultClass, seed: int, chosen: str) -> Sequence[Program]:
    """turn: one program a seed, each in its turn."""
    if chosen == "nanochat":
        return ["nanochat"]
    if chosen == "turn":
        return [one.programs[seed % len(one.programs)]]
    return [each for each in one.programs if chosen in (each, "both")]


def make(
    stages: Stages, one: FaultClass, program: Program, seed: int, options: argparse.Namespace
) -> None:
    """Make a trial, unless it is there; one that did not come about is begun once more."""
    path = options.results / file_name(one.name, program, options.hosts, f"{seed:03}")
    for _ in range(2):
        if not path.exists():
            attempt(stages, one, Trial(one.name, program, seed, options.hosts), path, options.seen)


def file_name(fault: str, program: Program, num_hosts: int, seed: str) -> str:
    hosts = "" if num_hosts == 2 else f"{num_hosts}hosts-"
    return f"{fault}-{program}-{hosts}{seed}.json"


def attempt(stages: Stages, one: FaultClass, trial: Trial, path: Path, seen: Path | None) -> None:
    own = stages.take()
    run = None
    try:
        run = run_trial(own, one, trial)
        if run is not None and seen is not None:
            run.keep_seen(seen, path.stem)
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
    times += f", raised {trial.raised_s} s, took {trial.took_s} s"
    line = f"{'fine' if fine else 'MISS'} {trial.fault} {trial.program} {trial.seed} "
    line += f"({trial.host}: {trial.done}): {said}, {times}, load {trial.load}"
    for told in trial.told[1:]:
        line += f"\n       {told.by}: {told.code} on {told.hosts} {told.rank} {told.certainty}"
    if trial.program == "nanochat" and trial.printed:
        # The file does not have it.
        line += f"\n{trial.printed}"
    return line


def summary(results: Path) -> str:
    """The table of all trials that are there."""
    head = ["fault", "program", "hosts", "trials", "right host", "right cause", "right rank"]
    head += ["median, s", "95%, s", "sure, s", "raised, s", "freed, s"]
    head += ["wrong hosts", "else told", "beside"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for num_hosts, one in product(TOPOLOGIES, CLASSES):
        for program in get_args(Program):
            names = file_name(one.name, program, num_hosts, "[0-9][0-9][0-9]*")
            if found := [json.loads(path.read_text()) for path in sorted(results.glob(names))]:
                lines.append(row_of(one, program, num_hosts, found))
    return "\n".join(lines)


def row_of(
    one: FaultClass, program: Program, num_hosts: int, found: Sequence[dict[str, Any]]
) -> str:
    seconds = sorted(each["verdict_s"] for each in found if each["verdict_s"] is not None)
    sure = [each["sure_s"] for each in found if each.get("sure_s") is not None]
    raised = [each["raised_s"] for each in found if each.get("raised_s") is not None]
    freed = [each["freed_s"] for each in found if each["freed_s"] is not None]
    others = sorted({each["code"] or "nothing" for each in found if not each["right_code"]})
    cells = [
        one.name,
        program,
        str(num_hosts),
        str(len(found)),
        *(str(sum(each[key] for each in found)) for key in ("right_host", "right_code")),
        str(sum(each["right_rank"] for each in found)),
        f"{statistics.median(seconds):.1f}" if seconds else "-",
        f"{percentile(seconds, 0.95):.1f}" if seconds else "-",
        f"{statistics.median(sure):.1f}" if sure else "-",
        f"{max(raised):.3f}" if raised else "-",
        f"{max(freed):.2f}" if freed else "-",
        str(sum(each["wrong_hosts"] for each in found)),
        ", ".join(others),
        str(sum(bool(each["beside"]) for each in found)),
    ]
    return f"| {' | '.join(cells)} |"


def classes_for(program: str, num_hosts: int) -> Sequence[str]:
    if program == "nanochat":
        return OF_NANOCHAT
    return ON_THREE_HOSTS if num_hosts == 3 else [each.name for each in CLASSES]


def percentile(ordered: Sequence[float], part: float) -> float:
    """The least value that so large a part does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", help="with commas between them (default: all)")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--program", choices=("turn", *PROGRAMS, "both", "nanochat"), default="turn"
    )
    parser.add_argument("--nanochat", type=Path, help="its checkout, for --program nanochat")
    parser.add_argument("--hosts", type=int, choices=tuple(TOPOLOGIES), default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seen", type=Path)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if options.program == "nanochat" and (options.nanochat is None or options.hosts != 2):
        parser.error("--program nanochat: on two hosts, and --nanochat CHECKOUT names its folder")
    possible = classes_for(options.program, options.hosts)
    chosen = options.classes.split(",") if options.classes else possible
    if strange := [name for name in chosen if name not in possible]:
        parser.error(f"--classes: {', '.join(strange)}; possible here: {', '.join(possible)}")
    options.results.mkdir(exist_ok=True)
    if not options.summary:
        with own_state():
            trials(options, [class_named(name) for name in chosen])
    print(summary(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

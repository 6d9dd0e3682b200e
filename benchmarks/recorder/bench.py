"""What the recorder of a rank costs: its thread, its calls, and steps with and without it.

usage: bench.py [--only hooks|runs] [--rounds 4] [--steps 100] [--results FOLDER] [--smoke]
                [--summary]

hooks: what runs in the rank's own thread, by a microbenchmark. runs: yoked's trainer on two hosts
of a lab, 2,048 tokens a step, without the recorder and with it in turn; with it, the CPU time of
its thread is read at the begin and at the end. Each round has a file in results/; one that is there
is not made again. --summary prints what is there. As root, in a quiet hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "two_hosts"), str(HERE.parent)]

import nanochat_side as side  # noqa: E402
from in_rank import FOLDER  # noqa: E402
from stage import HOSTS, SEED, STATE, Stage, _finish  # noqa: E402

from yoked.core.shared_json import read_shared_json  # noqa: E402

RESULTS = HERE / "results"
# A B A B.
ARMS = ("without", "with")
# The first steps build kernels and find their rows. The last lines come with the run's end.
SETTLE_STEPS, END_STEPS = 5, 3
MOST_SHARE = 0.005
_HOOK = (
    f"import os, sys; 'RANK' in os.environ and "
    f"(sys.path.append({FOLDER!r}), __import__('in_rank'))\n"
)
_LOOK_S = 0.2


@dataclass(frozen=True)
class Look:
    """A rank at one moment: seconds of CPU, and how often its recorder's thread got a core."""

    at_s: float
    thread_s: float
    rank_s: float
    runs: int


@dataclass(frozen=True)
class Share:
    """A rank over most of a run. thread_s, rank_s: CPU of the recorder's thread, and of all."""

    host: str
    seconds: float
    thread_s: float
    rank_s: float
    runs: int

    @classmethod
    def between(cls, host: str, first: Look, last: Look) -> Share:
        return cls(
            host,
            round(last.at_s - first.at_s, 3),
            round(last.thread_s - first.thread_s, 6),
            round(last.rank_s - first.rank_s, 3),
            last.runs - first.runs,
        )


@dataclass(frozen=True)
class Arm:
    """One run. step_s: of the steps that count; shares: of both ranks, with the recorder."""

    name: str
    step_s: list[float]
    shares: list[Share] = field(default_factory=list)


class RecorderStage(Stage):
    """The stage of two_hosts, on which ranks have a recorder or none."""

    def train(self, arm: str, steps: int) -> Arm:
        self._arrange(arm)
        run = self._name(arm)
        words = [*self._train(run, steps, SEED), "--sync=exact"]
        process = self._start(*words, "--fleet", str(self.lab.fleet_file))
        done = self._metrics(HOSTS[0], run)
        looks: list[list[Look]] = []
        due = [SETTLE_STEPS, steps - END_STEPS] if arm == "with" else []
        try:
            while process.poll() is None:
                if due and done() >= due[0]:
                    due.pop(0)
                    looks.append([self._look(run, rank) for rank in range(len(HOSTS))])
                time.sleep(_LOOK_S)
        finally:
            # Unless it has ended, something went wrong here.
            process.kill()
        _finish([process])
        if due:
            raise SystemExit(f"{run} ended before step {due[0]} was seen")
        taken = self._take_in(arm, HOSTS, run, range(SETTLE_STEPS, steps), {})
        # Each has a checkpoint.
        shutil.rmtree(self.scratch / "runs" / run)
        shares = [Share.between(*each) for each in zip(HOSTS, *looks, strict=True)] if looks else []
        return Arm(arm, taken.step_s, shares)

    def _arrange(self, arm: str) -> None:
        """Have the next run's ranks leave the recorder out, or tell its thread."""
        site = next(path for path in sys.path if path.endswith("site-packages"))
        for name in HOSTS:
            host = self.lab.host(name)
            host.run(["sh", "-ec", f"rm -rf {FOLDER}; mkdir -p {FOLDER}"], as_root=True)
            host.write_text(f"{FOLDER}/in_rank.py", (HERE / "in_rank.py").read_text())
            host.write_text(f"{site}/bench_recorder.pth", _HOOK)
            if arm == "without":
                host.write_text(f"{FOLDER}/without", "")

    def _look(self, run: str, rank: int) -> Look:
        """A rank now, by the host's own numbers of processes and threads."""
        host = HOSTS[rank]
        file = self._outside(host, STATE / "jobs" / run / "errors" / f"0.{rank}.record")
        record = read_shared_json(file)
        if record is None:
            raise SystemExit(f"rank {rank} of {run} has no record")
        thread = self._outside(host, Path(FOLDER) / "thread").read_text()
        process = self._outside(host, Path("/proc") / str(record["pid"]))
        run_ns, _, runs = (process / "task" / thread / "schedstat").read_text().split()
        # The name, in brackets, may have spaces in it. Source: proc_pid_stat(5), utime and stime.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Look(
            time.monotonic(), int(run_ns) / 1e9, ticks / os.sysconf("SC_CLK_TCK"), int(runs)
        )


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    names = ("link", "tokens", "dtype", "depth", "seq_len", "rows", "steps")
    return {name: getattr(options, name) for name in names}


def make_rounds(options: argparse.Namespace) -> None:
    """The rounds that are not there yet."""
    files = [options.results / f"round-{number:02}.json" for number in range(1, options.rounds + 1)]
    for file in files:
        if file.exists() and json.loads(file.read_text())["configuration"] != configuration(
            options
        ):
            raise SystemExit(f"{file.name} is of another configuration")
    missing = [file for file in files if not file.exists()]
    if not missing:
        return
    # The hosts have a /tmp of their own, and are to see what lies here.
    with tempfile.TemporaryDirectory(prefix="yoked-recorder-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        options.data = str(scratch / "text")
        side.write_shards(Path(options.data), side.into_shards(side.embedded_paragraphs()))
        with RecorderStage.up(scratch, options) as stage:
            try:
                # What the hosts receive and build once is there from now on.
                stage.train("without", 2 * SETTLE_STEPS)
                for file in missing:
                    arms = [stage.train(arm, options.steps) for arm in ARMS]
                    content = {
                        "configuration": configuration(options),
                        "machine": side.machine_facts(),
                        "arms": [asdict(arm) for arm in arms],
                    }
                    file.write_text(json.dumps(content, indent=1) + "\n")
                    print(f"{file.stem}: {round_line(content)}", flush=True)
            except SystemExit:
                print((scratch / "errors.log").read_text()[-4000:], file=sys.stderr)
                raise


def speed(arm: dict[str, Any]) -> float:
    """Steps a second, by the median step."""
    return 1.0 / statistics.median(arm["step_s"])


def share_of(arm: dict[str, Any]) -> float:
    """The recorder's thread in the CPU time of the rank that it takes most of."""
    return max(each["thread_s"] / each["rank_s"] for each in arm["shares"])


def round_line(content: dict[str, Any]) -> str:
    without, with_it = content["arms"]
    return (
        f"{speed(without):.3f} steps/s without, {speed(with_it):.3f} with, "
        f"ratio {speed(with_it) / speed(without):.4f}, thread {share_of(with_it):.2%}"
    )


def summary(results: Path) -> str:
    """What is there, and whether it is as claimed."""
    lines = []
    if (results / "hooks.json").exists():
        found = json.loads((results / "hooks.json").read_text())["ns"]
        lines += ["| call | ns |", "|---|---|"]
        lines += [f"| {name} | {each:.0f} |" for name, each in found.items()]
    rounds = [json.loads(file.read_text()) for file in sorted(results.glob("round-*.json"))]
    if rounds:
        lines += ["", *table_of(rounds)]
    return "\n".join(lines) or "nothing is there"


def table_of(rounds: list[dict[str, Any]]) -> list[str]:
    head = ("round", "without, steps/s", "with, steps/s", "with / without")
    lines = [f"| {' | '.join(head)} | thread, ms a second | thread of its rank |"]
    lines.append("|---" * 6 + "|")
    for number, content in enumerate(rounds, 1):
        without, with_it = content["arms"]
        each = [1e3 * share["thread_s"] / share["seconds"] for share in with_it["shares"]]
        cells = [str(number), f"{speed(without):.3f}", f"{speed(with_it):.3f}"]
        cells += [f"{speed(with_it) / speed(without):.4f}", f"{max(each):.2f}"]
        lines.append(f"| {' | '.join([*cells, f'{share_of(with_it):.2%}'])} |")
    ratios = [speed(each["arms"][1]) / speed(each["arms"][0]) for each in rounds]
    alone = [speed(each["arms"][0]) for each in rounds]
    own = [later / before for before, later in pairwise(alone)]
    shares = [share_of(each["arms"][1]) for each in rounds]
    lines += ["", f"with / without: median {statistics.median(ratios):.4f}, {extent(ratios)}"]
    if own:
        lines.append(f"without, from a round to the next: {extent(own)}")
    fine = abs(statistics.median(ratios) - 1.0) <= max(ratios) - min(ratios)
    lines.append(f"{'no' if fine else 'A'} difference beyond the spread of the ratios")
    kept = "within" if max(shares) <= MOST_SHARE else "OVER"
    lines.append(f"thread: {max(shares):.2%} of its rank at most, {kept} {MOST_SHARE:.1%}")
    return lines


def extent(values: list[float]) -> str:
    return f"{min(values):.4f} to {max(values):.4f}"


def parse() -> argparse.Namespace:
    """Options; those that the stage reads are named as there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("hooks", "runs"))
    parser.add_argument("--rounds", type=int, default=4, help="in all, with those that are there")
    parser.add_argument("--steps", type=int, default=100, help="of each run, a minute or so")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    parser.add_argument("--summary", action="store_true", help="print what is there")
    options = parser.parse_args()
    options.link, options.speeds, options.dtype = "1gbit", [1.0, 1.0], "float32"
    options.depth, options.seq_len, options.rows, options.tokens = 4, 512, 2, 2048
    options.train_flags, options.nanochat = [], None
    if options.smoke:
        options.depth, options.seq_len, options.tokens = 2, 128, 512
        options.rounds, options.steps = 1, 40
    return options


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as scratch:
        if options.smoke:
            options.results = Path(scratch)
        options.results.mkdir(exist_ok=True)
        if not options.summary:
            measure(options)
        print(summary(options.results))
    return 0


def measure(options: argparse.Namespace) -> None:
    file = options.results / "hooks.json"
    if options.only != "runs" and not file.exists():
        # It loads torch.
        import hooks

        content = {"machine": side.machine_facts(), "ns": hooks.measure()}
        file.write_text(json.dumps(content, indent=1) + "\n")
    if options.only != "hooks":
        make_rounds(options)


if __name__ == "__main__":
    sys.exit(main())

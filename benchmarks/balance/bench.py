"""Two lab hosts, one four times as fast as the other: what live balance gets out of both.

usage: bench.py [--only efficiency|slowing] [--speeds 4:1] [--tokens 16384] [--slow alpha]
                [--sync exact] [--steps 20] [--rounds 3] [--smoke]

efficiency: both together, rows by measured speed, against the sum of both alone at the same time.
slowing: in the middle of a run a host slows to half, and later it recovers. As root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "two_hosts"), str(HERE.parent)]

import nanochat_side as side  # noqa: E402
from stage import HOSTS, SEED, WARM_UP_STEPS, Stage, _finish  # noqa: E402

from yoked.journal import read  # noqa: E402
from yoked.lab import faults  # noqa: E402

EFFICIENCY, RECOVERED = 0.95, 0.90
# Rows find their place in these; they are not looked at.
SETTLE_STEPS = 8
# A host slows after BEFORE, must be made up for WITHIN, and LOOK are then looked at; so also
# when it recovers.
BEFORE_STEPS, WITHIN_STEPS, LOOK_STEPS = 20, 20, 10
HALF = "0.5"


class AtSteps(threading.Thread):
    """Acts once a run has finished so many steps; `done` has the steps that it had then."""

    def __init__(self, steps: Callable[[], int], acts: dict[int, Callable[[], object]]) -> None:
        super().__init__(daemon=True)
        self._steps, self._acts = steps, acts
        self._ended = threading.Event()
        self.done: list[int] = []

    def run(self) -> None:
        for step, act in sorted(self._acts.items()):
            while self._steps() < step:
                if self._ended.wait(0.05):
                    return
            act()
            self.done.append(self._steps())

    def end(self) -> None:
        self._ended.set()
        self.join()


class BalanceStage(Stage):
    """The stage of two_hosts, with a host that slows and recovers while both train."""

    def slowing(self, sync: str, slow: str) -> dict[str, Any]:
        """One run: lines of metrics, changes of rows, and the steps of the fault and its end."""
        run = self._name("slowing")
        heals_at = BEFORE_STEPS + WITHIN_STEPS + LOOK_STEPS
        steps = heals_at + WITHIN_STEPS + LOOK_STEPS
        words = [*self._train(run, steps, SEED), f"--sync={sync}", "--save-every=-1"]
        at_steps = AtSteps(
            self._metrics("alpha", run),
            {
                BEFORE_STEPS: lambda: faults.apply(self.lab, "slow-cpu", [slow, HALF]),
                heals_at: lambda: faults.heal(self.lab),
            },
        )
        at_steps.start()
        try:
            _finish([self._start(*words, "--fleet", str(self.lab.fleet_file))])
        finally:
            at_steps.end()
        folder = self.scratch / "runs" / run
        return {
            "steps": [line for line in read(folder / "metrics.jsonl") if "dt_s" in line],
            "changes": [e for e in read(folder / "events.jsonl") if e["event"] == "shares"],
            "acted_at": at_steps.done,
        }

    def rows(self, line: dict[str, Any]) -> list[int]:
        """Rows by rank of a step."""
        return [tokens // self.options.seq_len for tokens in line["tokens"]]

    def heads(self, line: dict[str, Any]) -> list[float]:
        """Rows that went through each rank's lm_head in a step."""
        return [
            (own + others) / self.options.seq_len
            for own, others in zip(line["tokens"], line["extra_tokens"], strict=True)
        ]

    def row_s(self, lines: list[dict[str, Any]], rank: int) -> float | None:
        """A row of a rank from its hidden states to its gradient, by these steps: seconds.

        The way through the lm_head by the ranks that have one, in proportion to their layers. The
        optimizer is taken for a part of rows. None: it had no rows.
        """
        if not all(self.rows(line)[rank] for line in lines):
            return None

        def layers_s(of: int) -> float:
            each = (
                (line["compute_s"][of] - line["head_s"][of], self.rows(line)[of]) for line in lines
            )
            return statistics.median(took_s / rows for took_s, rows in each if rows)

        def head_s(of: int) -> float:
            each = ((line["head_s"][of], self.heads(line)[of]) for line in lines)
            return statistics.median(took_s / rows for took_s, rows in each)

        has_it = [of for of in range(len(HOSTS)) if all(self.heads(line)[of] for line in lines)]
        model = rank if rank in has_it else has_it[0]
        return layers_s(rank) * (1 + head_s(model) / layers_s(model))

    def best_s(self, lines: list[dict[str, Any]]) -> float:
        """What steps take at best by what these cost by rank, wherever the lm_head is: all hosts
        busy from beginning to end, and the same sending.
        """
        total = self.options.tokens // self.options.seq_len
        each = [self.row_s(lines, rank) for rank in range(len(HOSTS))]
        # A host that has no rows is no use at best either.
        together = sum(1 / row_s for row_s in each if row_s)
        beside = [line["dt_s"] - max(line["compute_s"]) for line in lines]
        return total / together + statistics.median(beside)


def efficiency(stage: BalanceStage, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second together over the sum of both alone, by turns."""
    stage.both_alone(WARM_UP_STEPS)
    rounds = []
    # Before and after: the machine's own speed may have changed in between.
    after = stage.both_alone(options.steps)
    for number in range(options.rounds):
        before = after
        both = stage.together(options.sync, SETTLE_STEPS + options.steps)
        after = stage.both_alone(options.steps)
        alone = [
            statistics.mean(run.tokens_per_second for run in runs)
            for runs in zip(before, after, strict=True)
        ]
        settled = both.step_s[SETTLE_STEPS:]
        together = options.tokens / statistics.median(settled)
        ratio = together / sum(alone)
        rounds.append({"alone": alone, "together": together, "ratio": ratio, "step_s": both.step_s})
        print(
            f"round {number + 1}: alone {alone[0]:.0f} and {alone[1]:.0f} tokens/s, together "
            f"{together:.0f}: {rounds[-1]['ratio']:.1%} of the sum",
            flush=True,
        )
    ratio = statistics.median(each["ratio"] for each in rounds)
    return {"rounds": rounds, "ratio": ratio, "fine": ratio >= EFFICIENCY}


class UnclearError(Exception):
    """A run from which the recovery cannot be told: the machine was busy with something else."""


def slowing(stage: BalanceStage, options: argparse.Namespace) -> dict[str, Any]:
    """The part of the avoidable loss that is recovered within WITHIN_STEPS."""
    found = stage.slowing(options.sync, options.slow)
    try:
        figures = recovery(stage, found, options.slow)
    except UnclearError as why:
        print(f"unclear: {why}", flush=True)
        return {"unclear": str(why), "fine": False, **found}
    return {**figures, "fine": figures["recovered"] >= RECOVERED, **found}


def recovery(stage: BalanceStage, found: dict[str, Any], slow: str) -> dict[str, Any]:
    """What a run has got back, from its steps; raises UnclearError."""
    # A step's line is written when the next one has ended: the fault fell into the one after that.
    lines, (slowed, healed) = found["steps"], [done + 1 for done in found["acted_at"]]
    # Rows may also move for other reasons.
    rank = HOSTS.index(slow)
    relieved = [e["step"] for e in found["changes"] if e["rows"][rank] < e["before"][rank]]
    first = next((step for step in relieved if step > slowed), len(lines))
    # The step in which it slowed was fast for a part.
    unbalanced = lines[slowed + 1 : min(first, slowed + WITHIN_STEPS)]
    later = lines[slowed + WITHIN_STEPS : healed]
    if not unbalanced or not later:
        raise UnclearError(f"no step to compare: slowed {slowed}, moved {first}, healed {healed}")
    unbalanced_s, now_s = (
        statistics.median(s["dt_s"] for s in each) for each in (unbalanced, later)
    )
    best_s = stage.best_s(later)
    if best_s >= unbalanced_s:
        raise UnclearError(
            f"nothing to recover: {unbalanced_s:.2f} s a step when {slow} slowed, at best "
            f"{best_s:.2f} s later"
        )
    recovered = (unbalanced_s - now_s) / (unbalanced_s - best_s)
    rows = {"before": stage.rows(lines[slowed - 1]), "slow": stage.rows(later[-1])}
    rows["healed"] = stage.rows(lines[-1])
    print(
        f"{slow} slows to half in step {slowed}: rows {rows['before']} -> "
        f"{rows['slow']} from step {first}, {rows['healed']} at the end\n"
        f"a step: {unbalanced_s:.2f} s slowed, {now_s:.2f} s after {WITHIN_STEPS} steps, at best "
        f"{best_s:.2f} s: {recovered:.0%} of the avoidable loss recovered",
        flush=True,
    )
    figures = {"unbalanced_s": unbalanced_s, "now_s": now_s, "best_s": best_s}
    return {**figures, "recovered": recovered, "rows": rows}


PARTS = {"efficiency": efficiency, "slowing": slowing}


def parse() -> argparse.Namespace:
    """Options; those that the stage reads are named as there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--speeds", default="4:1", help="of the hosts alpha and beta")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens a step")
    parser.add_argument("--slow", choices=HOSTS, default=HOSTS[0], help="the host that slows")
    parser.add_argument("--sync", default="exact")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    options = parser.parse_args()
    options.depth, options.seq_len, options.rows = 4, 512, 2
    if options.smoke:
        options.depth, options.seq_len, options.tokens = 2, 64, 1024
        options.rounds, options.steps = 1, 6
    options.speeds = [float(speed) for speed in options.speeds.split(":")]
    options.train_flags, options.nanochat = [], None
    return options


def main() -> int:
    options = parse()
    results: dict[str, Any] = {"machine": side.machine_facts(), "options": vars(options).copy()}
    # The hosts have a /tmp of their own, and are to see what lies here.
    with tempfile.TemporaryDirectory(prefix="yoked-balance-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        options.data = str(scratch / "text")
        side.write_shards(Path(options.data), side.into_shards(side.embedded_paragraphs()))
        with BalanceStage.up(scratch, options) as stage:
            for part in [options.only] if options.only else PARTS:
                try:
                    results[part] = PARTS[part](stage, options)
                except SystemExit:
                    print((scratch / "errors.log").read_text()[-4000:], file=sys.stderr)
                    raise
    fine = all(results[part]["fine"] for part in PARTS if part in results)
    if not options.smoke:
        out = HERE / "results" / f"{options.only or 'all'}-{options.sync}-{options.slow}.json"
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")
    print("all as wanted" if fine else "NOT as wanted")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

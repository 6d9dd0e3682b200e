"""Two lab hosts, one core each, and the programs that train on them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nanochat_side as side
from watch import LineCount, Watch

from yoked.costmodel.step_plan import EXACT
from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.journal import read
from yoked.lab import boot, shaping, tools
from yoked.lab.lab import Lab
from yoked.lab.topology import Interface, Shape
from yoked.lab.topology_load import load
from yoked.report.bench_table import concurrent_steps

COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
YOKED = [sys.executable, "-c", COMMAND]
HOSTS = ("alpha", "beta")
UNSHAPED = "yoked, exact, unshaped"
STATE = Path.home() / ".local" / "state" / "yoked"
WARM_UP_STEPS = 3
SEED = 42
LIMIT_S = 4 * 3600.0
# Spins wherever nobody else wants the processor, and ends with whoever started it. Where the
# kernel groups by session (autogroup, sched(7)) a policy counts within one: the session's gives
# way too.
AWAKE = """
import os, sys
from contextlib import suppress
parent = os.getppid()
os.setsid()
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
with suppress(FileNotFoundError), open("/proc/self/autogroup", "w") as group:
    group.write("19")
while os.getppid() == parent:
    pass
"""


@contextmanager
def awake_processors(speeds: Sequence[float]) -> Iterator[None]:
    """Keep the processors of hosts that have a part of a core from halting, below all others.

    Such a host stands still most of the time. On a virtual machine its processor is the
    hypervisor's meanwhile, which gives it back late and cold: the host then has less than its
    part, and another part in every second.
    """
    cores = sorted(os.sched_getaffinity(0))
    slower = [core for core, speed in zip(cores, speeds, strict=False) if speed < max(speeds)]
    spinners = [subprocess.Popen([sys.executable, "-c", AWAKE, str(core)]) for core in slower]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


@dataclass(frozen=True)
class Run:
    """One program's run. step_s: of the steps that count; losses: of all, in nats.

    compute_s, comm_s, wait_s: medians, by rank. payload_bytes: of the rank that sends most, by
    the program's own count. sent: by host, bytes a step by the interface's counters ("counted")
    and with the headers of every segment ("wire").
    """

    arm: str
    hosts: tuple[str, ...]
    tokens_a_step: int
    step_s: list[float]
    losses: list[float]
    compute_s: list[float] = field(default_factory=list)
    comm_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    payload_bytes: float = 0.0
    sent: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_a_step / statistics.median(self.step_s)


def topology_text(link: str, speeds: Sequence[float], wifi: Mapping[str, str]) -> str:
    """Two hosts at a switch. speeds: relative to each other; the fastest has its whole core.

    wifi: the last one's delay, jitter and loss, as a topology file has them.
    """
    lines = ["[[network]]", 'name = "lan"', 'subnet = "192.168.77.0/24"', f'rate = "{link}"']
    for name, speed in zip(HOSTS, speeds, strict=True):
        lines += ["[[host]]", f'name = "{name}"', f"speed = {speed / max(speeds):.4f}"]
    lines += [f'{key} = "{value}"' for key, value in wifi.items()]
    return "\n".join(lines) + "\n"


class Stage:
    """A lab that is up, the data on it, and what is typed there."""

    def __init__(self, lab: Lab, scratch: Path, options: argparse.Namespace) -> None:
        self.lab, self.scratch, self.options = lab, scratch, options
        self.number = 0
        self.fleets = {name: self._fleet_of(name) for name in HOSTS}

    @classmethod
    @contextmanager
    def up(
        cls, scratch: Path, options: argparse.Namespace, wifi: Mapping[str, str] | None = None
    ) -> Iterator[Stage]:
        """Bring the lab up; it ends with this process. wifi: as `topology_text` has it."""
        file = scratch / "two-hosts.toml"
        file.write_text(topology_text(options.link, options.speeds, wifi or {}))
        # The person's own labs, runs and connections go on.
        os.environ["YOKED_STATE"] = str(scratch / "state")
        os.environ["XDG_RUNTIME_DIR"] = str(scratch)
        with (
            awake_processors(options.speeds),
            Lab.up(load(str(file)), name="two-hosts-bench", tethered=True) as lab,
        ):
            for note in lab.notes:
                print(f"note: {note}", file=sys.stderr)
            yield cls(lab, scratch, options)

    def _fleet_of(self, name: str) -> Path:
        path = self.scratch / f"{name}.toml"
        path.write_text(
            f'[fleet]\nname = "{name}"\nssh_config = "{self.lab.ssh_config}"\n'
            f'[[host]]\nname = "{name}"\npython = "{sys.executable}"\n'
        )
        remember(read_fleet(path))
        return path

    def model_flags(self, steps: int) -> list[str]:
        """What yoked and nanochat are both given."""
        return [
            f"--depth={self.options.depth}",
            *("--aspect-ratio=64", "--head-dim=64", "--window-pattern=L"),
            f"--max-seq-len={self.options.seq_len}",
            f"--device-batch-size={self.options.rows}",
            f"--total-batch-size={self.options.tokens}",
            f"--num-iterations={steps}",
        ]

    def together(self, sync: str, steps: int, seed: int = SEED) -> Run:
        """Both hosts on one run."""
        run = self._name(sync)
        words = [*self._train(run, steps, seed), f"--sync={sync}", *self.options.train_flags]
        with self._watching({"alpha": self._metrics("alpha", run)}) as watch:
            _finish([self._start(*words, "--fleet", str(self.lab.fleet_file))])
        # A step's line is written when the next one has ended, and the last with the one before.
        sent = watch.bytes_a_step("alpha", 2, steps - 2)
        return self._take_in(f"yoked, {sync}", HOSTS, run, range(1, steps), sent)

    def unshaped(self, steps: int) -> Run:
        """Both hosts on one run, exact, while the network is as fast as the machine."""
        self._shape_links(lambda interface: Shape())
        try:
            run = self.together(EXACT, steps)
        finally:
            self._shape_links(lambda interface: interface.shape)
        return replace(run, arm=UNSHAPED)

    def _shape_links(self, shape_of: Callable[[Interface], Shape]) -> None:
        for spec in self.lab.topology.hosts:
            host = self.lab.host(spec.name)
            boot.shape_host(self.lab, spec, host.inside, shape_of)
            for each in spec.joined:
                tools.run_ip(host, shaping.batching(each.name, shape_of(each), one_by_one=False))

    def both_alone(self, steps: int) -> list[Run]:
        """A run on each host by itself, both at the same time. steps: of the faster one."""
        # They end at about the same time, so that most of the slower one's steps count.
        fastest = max(self.options.speeds)
        speeds = zip(HOSTS, self.options.speeds, strict=True)
        totals = {name: max(WARM_UP_STEPS, round(steps * each / fastest)) for name, each in speeds}
        return self.alone(totals)

    def alone(self, totals: dict[str, int], seeds: Sequence[int] = ()) -> list[Run]:
        """Runs of so many steps on hosts by themselves, at the same time; seeds: one a host."""
        runs = {name: self._name(name) for name in totals}
        watched = {name: self._metrics(name, runs[name]) for name in totals}
        with self._watching(watched) as watch:
            started = [
                self._start(
                    *self._train(runs[name], total, seed), "--fleet", str(self.fleets[name])
                )
                for (name, total), seed in zip(
                    totals.items(), seeds or [SEED] * len(totals), strict=True
                )
            ]
            _finish(started)
        counted = concurrent_steps(watch.steps_done, totals)
        taken = []
        for name, total in totals.items():
            steps_here = counted[name]
            if len(steps_here) < 2:
                steps_here = range(1, total)
                if total > WARM_UP_STEPS:
                    print(f"note: {name} alone: too few steps beside the other's, all count")
            taken.append(self._take_in(f"{name} alone", (name,), runs[name], steps_here, {}))
        return taken

    def nanochat(self, steps: int) -> Run:
        """nanochat's own trainer on both hosts, started by `yoked run`."""
        run = self._name("nanochat")
        base = self.scratch / "nanochat"
        log = self._outside("alpha", STATE / "jobs" / run / "logs" / "0.0.out")
        checkout = self.options.nanochat.resolve()
        never = ("--eval-every=-1", "--core-metric-every=-1", "--sample-every=-1")
        # To see that it works, it need not compile itself for minutes.
        eager = ("--env", "TORCHDYNAMO_DISABLE=1") if self.options.smoke else ()
        with self._watching({"alpha": LineCount(log, b"step ")}) as watch:
            said = _finish(
                [
                    self._start(
                        *("run", "--fleet", str(self.lab.fleet_file), "--run", run, "--threads=1"),
                        *("--env", f"NANOCHAT_BASE_DIR={base}"),
                        *("--env", f"NANOCHAT_DTYPE={self.options.dtype}"),
                        *("--env", f"PYTHONPATH={self.scratch / 'stubs'}", *eager),
                        *("--", "-m", "scripts.base_train", "--device-type=cpu", *never),
                        *self.model_flags(steps),
                        cwd=checkout,
                    )
                ]
            )
        printed = side.read_steps(said[0].splitlines())
        if len(printed) != steps:
            raise SystemExit(f"nanochat printed {len(printed)} of {steps} steps:\n{said[0]}")
        for name in HOSTS:
            self._remove(name, str(base / "base_checkpoints"), str(STATE / "jobs" / run))
        return Run(
            "nanochat",
            HOSTS,
            self.options.tokens,
            [step.dt_s for step in printed[1:]],
            [step.loss for step in printed],
            sent=watch.bytes_a_step("alpha", 2, steps - 1),
        )

    def ddp(self, steps: int) -> list[Run]:
        """PyTorch's DDP on each host alone, both at the same time, and then on both together."""
        together = self.lab.fleet_file
        alone = self._ddp([self.fleets[name] for name in HOSTS], steps)
        runs = [*alone, *self._ddp([together], steps)]
        arms = [*(f"ddp, {name} alone" for name in HOSTS), "ddp"]
        return [
            Run(
                arm,
                HOSTS,
                self.options.tokens,
                [step["dt_s"] for step in printed[1:]],
                [step["loss"] for step in printed],
            )
            for arm, printed in zip(arms, runs, strict=True)
        ]

    def _ddp(self, fleets: Sequence[Path], steps: int) -> list[list[dict[str, float]]]:
        """What runs on these fleets, at the same time, print of each step."""
        folder = self.scratch / "ddp"
        folder.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("ddp.py"), folder)
        shape = {
            name: getattr(self.options, name.replace("-", "_"))
            for name in ("depth", "seq-len", "rows", "tokens")
        }
        flags = [f"--{name}={value}" for name, value in shape.items()]
        started = [
            self._start(
                *("run", "--fleet", str(fleet), "--run", self._name("ddp"), "--threads=1"),
                *("--", "ddp.py", *flags, f"--steps={steps}"),
                cwd=folder,
            )
            for fleet in fleets
        ]
        said = _finish(started)
        return [
            [json.loads(line) for line in text.splitlines() if line.startswith('{"step"')]
            for text in said
        ]

    def _name(self, what: str) -> str:
        self.number += 1
        return f"bench-{self.number}-{what.replace(':', '-')}"

    def _train(self, run: str, steps: int, seed: int) -> list[str]:
        return [
            *("train", *self.model_flags(steps), f"--dtype={self.options.dtype}"),
            *("--device-type=cpu", "--threads=1", "--eval-every=-1", f"--seed={seed}"),
            # A host that makes a step longer would sit out.
            "--keep=all",
            *(f"--data={self.options.data}", f"--run={run}", "--json"),
            f"--runs-dir={self.scratch / 'runs'}",
        ]

    def _start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*YOKED, *words],
            cwd=cwd or self.scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.scratch / "errors.log").open("a"),
            text=True,
        )

    def _outside(self, host: str, path: Path) -> Path:
        """A host's file as the machine sees it."""
        return Path(f"/proc/{self.lab.host(host).pid}/root") / path.relative_to("/")

    def _metrics(self, host: str, run: str) -> LineCount:
        return LineCount(self._outside(host, STATE / "runs" / run / "metrics.jsonl"), b"{")

    def _watching(self, steps: dict[str, LineCount]) -> Watch:
        return Watch({name: self.lab.host(name) for name in HOSTS}, steps)

    def _take_in(
        self,
        arm: str,
        hosts: tuple[str, ...],
        run: str,
        counted: range,
        sent: dict[str, dict[str, float]],
    ) -> Run:
        lines = read(self.scratch / "runs" / run / "metrics.jsonl")
        steps = [line for line in lines if "dt_s" in line]
        taken = steps[counted.start : counted.stop]
        for name in hosts:
            self._remove(name, str(STATE / "runs" / run), str(STATE / "jobs" / run))
        return Run(
            arm,
            hosts,
            self.options.tokens,
            [step["dt_s"] for step in taken],
            [step["loss"] for step in steps],
            *(_by_rank(taken, name) for name in ("compute_s", "comm_s", "wait_s")),
            payload_bytes=statistics.median(max(step["bytes_sent"]) for step in taken),
            sent=sent,
        )

    def _remove(self, host: str, *folders: str) -> None:
        # A host's files are in memory, and a checkpoint is half a gigabyte.
        self.lab.host(host).run(["rm", "-rf", *folders], as_root=True)


def _by_rank(steps: list[dict[str, Any]], name: str) -> list[float]:
    ranks = zip(*(step[name] for step in steps), strict=True)
    return [statistics.median(values) for values in ranks]


def _finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for commands; what they printed. Raises SystemExit when one failed."""
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, text in zip(processes, said, strict=True):
        if process.returncode:
            words = " ".join(map(str, process.args[3:]))  # type: ignore[index]
            errors = _error_of(text)
            raise SystemExit(f"yoked {words} ended with {process.returncode}:\n{errors}")
    return said


def _error_of(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["what"])
    except (ValueError, KeyError, TypeError):
        return text[-3000:]

"""Hosts of a lab, and runs on them: start one, look at it from outside, clear it away.

What is read of a host is read by way of /proc, beside its network and its programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classes import Program
from nanochat_program import Nanochat

import yoked
from yoked.core.proc import ProcessId
from yoked.core.shared_json import read_shared_json
from yoked.errors import YokedError
from yoked.lab import faults
from yoked.lab.faults.processes import identified, is_ssh_server
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load
from yoked.launch.bootstrap.watch import SEEN_NAME

HERE = Path(__file__).resolve().parent
# By the number of hosts.
TOPOLOGIES = {2: "two-hosts-1gbe", 3: str(HERE / "three-hosts.toml")}
SOURCES = Path(yoked.__file__).parents[1]
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
YOKED = [sys.executable, "-c", COMMAND]
# In a host; as program/acts.py has them.
ACTS, TRIGGER, STAMP, STUCK = "/run/bench", "/run/bench/act", "/run/bench/stamp", "/run/bench/stuck"
_HOOK = (
    f"import os, sys; 'RANK' in os.environ and "
    f"(sys.path.append({ACTS!r}), __import__('{{module}}'))\n"
)
# What does the acts in programs that have no place for them.
_HOOKED: dict[Program, str] = {"trainer": "in_trainer", "nanochat": "beside"}
_JOBS = Path.home() / ".local/state/yoked/jobs"
_START_S, _CLEAR_ROUNDS = 120.0, 20
# A model of about 4 MB of gradients, and steps of about 0.1 s.
MODEL = (
    *("--depth", "4", "--aspect-ratio", "32", "--head-dim", "32", "--max-seq-len", "128"),
    *("--vocab-size", "2048", "--total-batch-size", "1024", "--device-batch-size", "4"),
    *("--dtype", "float32", "--matmul", "mkl", "--attention", "sdpa", "--compile", "off"),
    *("--sync", "exact", "--lm-head", "replicated", "--balance", "off", "--threads", "1"),
    *("--keep", "all"),
)
_NEITHER = ("--eval-every", "-1", "--save-every", "-1")


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Labs and runs of this process alone: the person's own go on."""
    # What was begun is taken down, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="yb-") as state:
        os.environ["YOKED_STATE"] = state
        yield


@dataclass
class Run:
    """A run that was started. folders: of its job, by host, as this process reaches them."""

    name: str
    folders: dict[str, Path]
    ranks: dict[int, ProcessId] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """By rank: each host has one."""
        return tuple(self.folders)

    def read(self, host: str, name: str) -> dict[str, Any]:
        """A JSON file of the job on a host; empty where it is not there."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folders[host] / name).read_text())
            return found
        return {}

    def steps(self, rank: int) -> int:
        """The steps that a rank took."""
        return int((read_shared_json(self.record(rank)) or {}).get("steps", 0))

    @property
    def least_steps(self) -> int:
        """The steps that all ranks took."""
        return min(self.steps(rank) for rank in range(len(self.hosts)))

    def record(self, rank: int) -> Path:
        """What a rank's recorder writes."""
        return self.folders[self.hosts[rank]] / "errors" / f"0.{rank}.record"

    def keep_seen(self, folder: Path, name: str) -> None:
        """Copy what each host judged by into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for host, own in self.folders.items():
            with contextlib.suppress(OSError):
                shutil.copyfile(own / SEEN_NAME, folder / f"{name}-{host}.json.gz")

    def printed(self) -> str:
        """The end of what ranks and launchers wrote."""
        said = []
        for host, folder in self.folders.items():
            for path in sorted((folder / "logs").glob("*")):
                with contextlib.suppress(OSError):
                    said.append(f"{host} {path.name}: {path.read_text(errors='replace')[-1500:]}")
        return "\n".join(said)


@dataclass
class Stage:
    """One lab, up, with the folder of the person who starts runs on it."""

    lab: Lab
    folder: Path
    nanochat: Nanochat | None = None
    trials: int = 0
    helpers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCES),
            # Each trial has ssh connections of its own: a fault may have left one hanging.
            "XDG_RUNTIME_DIR": str(self.folder / f"run{self.trials}"),
        }

    @property
    def hosts(self) -> tuple[str, ...]:
        """By rank: each host has one."""
        return tuple(host.name for host in self.lab.topology.hosts)

    def host(self, name: str) -> LabHost:
        return self.lab.host(name)

    def prepare(self, program: Program) -> None:
        """What a program needs on the hosts to do its acts, for this trial alone."""
        self.trials += 1
        (self.folder / f"run{self.trials}").mkdir(mode=0o700)
        site = next(path for path in sys.path if path.endswith("site-packages"))
        hook = f"{site}/bench_in_rank.pth"
        for name in self.hosts:
            host = self.host(name)
            # As most Linux has it, or close to that: BBR, this machine's, is not slowed down by 5%
            # of lost packets. Cubic is not allowed in a namespace where the machine has BBR.
            host.write_text("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
            host.run(["sh", "-ec", f"rm -rf {ACTS} {hook}; mkdir -p {ACTS}; touch {STUCK}"])
            if (module := _HOOKED.get(program)) is not None:
                for file in ("acts.py", f"{module}.py"):
                    host.write_text(f"{ACTS}/{file}", (HERE / "program" / file).read_text())
                host.write_text(hook, _HOOK.format(module=module))

    def start(self, program: Program, steps: int, *flags: str) -> Run:
        """Start a run that ends on a fault, and wait until it is under way. Raises RuntimeError."""
        if program == "ddp":
            return self.launch("run", ["--", "train.py", str(steps), *flags])
        if program == "nanochat":
            assert self.nanochat is not None
            folder = self.nanochat.checkout.path
            return self.launch("run", self.nanochat.words(steps), folder=folder)
        return self.launch("train", ["--num-iterations", str(steps), *MODEL, *_NEITHER])

    def launch(
        self,
        command: str,
        words: Sequence[str],
        *,
        on_fault: str = "stop",
        folder: Path | None = None,
    ) -> Run:
        """Start `yoked run` or `yoked train` on all hosts. Raises RuntimeError.

        folder: of the program; None: that of the bench's own.
        """
        name = f"t{secrets.token_hex(4)}"
        fleet = ["--fleet", str(self.lab.fleet_file), "--run", name, "--on-fault", on_fault]
        runs = ["--runs-dir", str(self.folder / "runs")] if command == "train" else []
        words = [command, *fleet, "--detach", "--json", "--no-doctor", *runs, *words]
        done = subprocess.run(
            [*YOKED, *words],
            cwd=folder or self.folder / "program",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{words}: {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return Run(name, {host: self._job_folder(host, name) for host in self.hosts})

    def _job_folder(self, host: str, name: str) -> Path:
        folder = Path(f"/proc/{self.host(host).pid}/root{_JOBS}")
        found = [path for path in folder.iterdir() if path.name.startswith(name)]
        if len(found) != 1:
            raise RuntimeError(f"{host} has the jobs {found}")
        return found[0]

    def await_steps(self, run: Run, steps: int, limit_s: float = _START_S) -> None:
        """Until all ranks took so many; knows their processes then. Raises RuntimeError."""
        until_s = time.monotonic() + limit_s
        while run.least_steps < steps:
            over = [host for host in run.hosts if run.read(host, "outcome.json")]
            if over or time.monotonic() > until_s:
                raise RuntimeError(f"no {steps} steps; over: {over}\n{run.printed()}")
            time.sleep(0.05)
        if not run.ranks:
            run.ranks = {rank: self._process(run, rank) for rank in range(len(run.hosts))}

    def _process(self, run: Run, rank: int) -> ProcessId:
        """A rank's process, as this machine knows it."""
        record = read_shared_json(run.record(rank))
        assert record is not None
        host = self.host(run.hosts[rank])
        processes = {each.pid: each.outer_pid for each in host.processes()}
        return ProcessId.of(processes[record["pid"]])

    def help(self, words: list[str]) -> None:
        """Start a program of this machine that says `ready`, and ends with the trial."""
        helper = subprocess.Popen(
            words, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.helpers.append(helper)
        assert helper.stdout is not None
        if helper.stdout.readline() != "ready\n":
            raise RuntimeError(f"{words} did not begin")

    def clear(self, run: Run | None) -> None:
        """End whatever a trial left, and undo what it broke. Raises YokedError, RuntimeError."""
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        self.helpers = []
        for name in self.hosts:
            if (group := self.host(name).group) is not None:
                group.thaw()
                if group.can("memory"):
                    group.set_memory(None)
            self.host(name).tool(["nft", "flush", "ruleset"])
        # First, so that what is ended can say so to those that it is connected to.
        faults.heal(self.lab)
        for name in self.hosts:
            end_all(self.host(name))
            if run is not None:
                shutil.rmtree(run.folders[name], ignore_errors=True)


def without_folders(text: str) -> str:
    """What a trial left, without the folders of this machine."""
    trees = Path.home() / ".cache/yoked/trees"
    scratch = Path(tempfile.gettempdir())
    for folder in (rf"{_JOBS}/\w+", rf"{trees}/\w+", rf"{scratch}/y[bg]-\w+"):
        text = re.sub(f"{folder}/", "", text)
    for folder, name in ((sys.prefix, "venv"), (SOURCES.parent, "yoked"), (Path.home(), "~")):
        text = text.replace(str(folder), name)
    return text


def end_all(host: LabHost) -> None:
    """Kill all processes of a host but its first one and its ssh server. Raises RuntimeError."""
    for _ in range(_CLEAR_ROUNDS):
        ours = [
            each
            for each in host.processes()
            if each.pid != 1 and each.state not in "ZX" and not is_ssh_server(each)
        ]
        if not ours:
            return
        for process in identified(ours):
            process.kill(1.0)
    raise RuntimeError(f"{host.name} still runs {ours}")


@contextlib.contextmanager
def stage(num_hosts: int = 2, nanochat: Nanochat | None = None) -> Iterator[Stage]:
    """Hosts at one switch; all is gone at the end, also of a process that is killed."""
    with (
        tempfile.TemporaryDirectory(prefix="yg-") as folder,
        Lab.up(load(TOPOLOGIES[num_hosts]), name=f"d-{secrets.token_hex(3)}", tethered=True) as lab,
    ):
        own = Stage(lab, Path(folder), nanochat)
        shutil.copytree(HERE / "program", own.folder / "program")
        try:
            yield own
        finally:
            for helper in own.helpers:
                helper.kill()


class Stages:
    """The stage of the next trial: the last one's, unless that could not be cleared."""

    def __init__(self, num_hosts: int, nanochat: Nanochat | None) -> None:
        self._num_hosts, self._nanochat = num_hosts, nanochat
        self._exit = contextlib.ExitStack()
        self._stage: Stage | None = None

    def take(self) -> Stage:
        if self._stage is None:
            self._stage = self._exit.enter_context(stage(self._num_hosts, self._nanochat))
        return self._stage

    def give_back(self, own: Stage, run: Run | None, *, again: bool) -> None:
        """again: whether another trial may use it."""
        try:
            if again:
                own.clear(run)
                return
        except (YokedError, RuntimeError, OSError) as problem:
            print(f"a new lab: {problem}", flush=True)
        self.close()

    def close(self) -> None:
        self._stage = None
        self._exit.close()

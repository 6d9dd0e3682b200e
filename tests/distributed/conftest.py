"""Tiny real runs: a text of made-up words, and `yoked train` in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from yoked.agent import compiled
from yoked.cli.output import Output
from yoked.launch.here import LocalRun, run_here
from yoked.report.loss_plot import Curve, read_curve
from yoked.train.config import TrainConfig

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 120.0
# What is measured at each start would be other bits at some.
PINNED = {"matmul": "mkl", "attention": "sdpa", "threads": 1}
YOKED = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
# Matplotlib takes longer than a tiny run: one test sees that a run is drawn.
UNDRAWN = (
    "from yoked.report import loss_plot; "
    "loss_plot.plot_loss = lambda run_dir: (run_dir / 'loss.png', run_dir / 'loss.svg'); "
)


def made_up_text(seed: int) -> list[str]:
    """Documents of 700 words in which one word mostly decides the next."""
    dice = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 8))) for _ in range(700)]
    documents = []
    for _ in range(40):
        word, said = dice.randrange(700), []
        for _ in range(600):
            follows = (word * 31 + dice.choice([1, 2, 3, 5])) % 700
            word = follows if dice.random() < 0.8 else dice.randrange(700)
            said.append(words[word])
        documents.append(" ".join(said))
    return documents


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number, document in enumerate(made_up_text(seed=1)):
        (folder / f"{number:02}.txt").write_text(document + "\n")
    return folder


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, tokenizer and kernels are prepared once for all tests of this folder."""
    return tmp_path_factory.mktemp("cache")


@dataclass
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


@dataclass
class Started:
    """A command that runs; `end` waits for it."""

    process: subprocess.Popen[str]
    root: Path

    def end(self, timeout_s: float = DEADLINE_S) -> Ended:
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        return Ended(self.process.returncode, stdout, stderr)

    def ranks(self) -> list[psutil.Process]:
        """The ranks, in their order, once they are there."""

        def found() -> list[psutil.Process]:
            family = psutil.Process(self.process.pid).children(recursive=True)
            family += jobs_processes(self.root)
            mine = [p for p in family if "RANK" in _environ(p)]
            return sorted(mine, key=lambda p: int(_environ(p)["RANK"]))

        until(lambda: bool(found()), self)
        return found()


def jobs_processes(root: Path) -> list[psutil.Process]:
    """What runs of the jobs below a folder: they are nobody's children."""
    return [
        process
        for process in psutil.process_iter()
        if _environ(process).get("YOKED_JOB_FOLDER", "").startswith(f"{root}/")
    ]


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def until(condition: Callable[[], bool], started: Started | None = None) -> None:
    """Poll until it is so; fails at the deadline, or when the command ended before."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if started is not None and started.process.poll() is not None:
            pytest.fail(f"it ended before: {started.end()}")
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


@dataclass
class Laboratory:
    """Starts tiny runs; whatever still lives at the end of the test is killed."""

    root: Path
    text: Path
    cache: Path
    started: list[Started] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def flags(self, **changes: Any) -> list[str]:
        """Flags of a tiny run; a change of None leaves one out."""
        values: dict[str, Any] = {
            "data": self.text,
            "vocab-size": 512,
            "depth": 2,
            "aspect-ratio": 32,
            "head-dim": 32,
            "max-seq-len": 64,
            "total-batch-size": 512,
            "device-batch-size": 3,
            "dtype": "float32",
            "num-iterations": 12,
            "eval-every": 6,
            "eval-tokens": 256,
            "save-every": 4,
            **{name.replace("_", "-"): value for name, value in changes.items()},
        }
        return [f"--{name}={value}" for name, value in values.items() if value is not None]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        # torch sets the folder of its compiled code in a process that compiles: an earlier test.
        own = {name: value for name, value in os.environ.items() if name != compiled.VARIABLE}
        return {
            **own,
            "PYTHONPATH": str(SOURCE),
            "YOKED_CACHE": str(self.cache),
            "YOKED_STATE": str(self.root / "state"),
            # What a killed command had there goes with the test.
            "TMPDIR": str(self.root),
            "OMP_NUM_THREADS": "1",
            **(more or {}),
        }

    def start(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Started:
        # Tied to this process: a test that is killed leaves nothing behind.
        tether = [sys.executable, "-m", "yoked.parent_death", str(os.getpid())]
        process = subprocess.Popen(
            [*tether, sys.executable, *argv],
            env=self.environment(environment),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(Started(process, self.root))
        return self.started[-1]

    def train(
        self,
        run: str,
        *flags: str,
        ranks: int = 1,
        environment: Mapping[str, str] | None = None,
        drawn: bool = False,
    ) -> Started:
        """`yoked train`; without flags, the tiny run."""
        program = YOKED if drawn else UNDRAWN + YOKED
        argv = ["-c", program, "train", "--json", f"--runs-dir={self.runs}", f"--run={run}"]
        return self.start([*argv, f"--ranks={ranks}", *(flags or self.flags())], environment)

    def torchrun(self, ranks: int, *arguments: str) -> Started:
        """Plain torchrun, as the seeds of the project have it."""
        return self.start(
            [
                *("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"),
                *("-m", "yoked.train", *arguments),
            ],
            {"GLOO_SOCKET_IFNAME": "lo"},
        )

    def run_module(self, module: str, config: TrainConfig) -> dict[str, Any]:
        """A run of ranks of a module that is in PYTHONPATH, followed from this process."""
        assert config.run is not None
        result = run_here(
            LocalRun(
                run=config.run,
                run_dir=(self.runs / config.run).resolve(),
                ranks=config.local_ranks,
                config=config.to_dict(),
                module=module,
            ),
            Output(json_mode=True),
        )
        assert result is not None
        return result

    def curve(self, run: str) -> Curve:
        return read_curve(self.runs / run / "metrics.jsonl")

    def lines(self, run: str) -> int:
        metrics = self.runs / run / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def checkpoints(self, run: str) -> Path:
        return self.runs / run / "checkpoints" / "base_checkpoints" / "d2"

    def clean_up(self) -> None:
        for started in self.started:
            if started.process.poll() is None:
                family = psutil.Process(started.process.pid).children(recursive=True)
                for process in [*family, started.process]:
                    try:
                        process.send_signal(signal.SIGKILL)
                    except psutil.NoSuchProcess:
                        continue
                started.process.communicate()
        # Whoever followed a run is gone; the run is not.
        until_s = time.monotonic() + DEADLINE_S
        while left := jobs_processes(self.root):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            assert time.monotonic() < until_s, left
            time.sleep(0.02)


@pytest.fixture
def lab(tmp_path: Path, text_folder: Path, shared_cache: Path) -> Iterator[Laboratory]:
    laboratory = Laboratory(tmp_path, text_folder, shared_cache)
    yield laboratory
    laboratory.clean_up()


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, text_folder: Path, shared_cache: Path
) -> Path:
    """The folder of the tiny run `done`, trained once; a test that goes on with it copies it."""
    laboratory = Laboratory(tmp_path_factory.mktemp("trained"), text_folder, shared_cache)
    try:
        ended = laboratory.train("done", drawn=True).end()
    finally:
        laboratory.clean_up()
    assert ended.status == 0, ended.stderr
    return laboratory.runs / "done"


@pytest.fixture
def done(trained: Path, lab: Laboratory) -> list[float]:
    """A copy of the tiny run `done`, of 12 steps, for one test: its losses."""
    shutil.copytree(trained, lab.runs / "done", symlinks=True)
    losses: list[float] = lab.curve("done").losses
    return losses


@pytest.fixture
def far(lab: Any) -> Callable[..., Any]:
    """Starts ranks that pose as hosts by plain torchrun; see far_rank.py."""

    def start(flops: str, *flags: str, becomes: str | None = None, **variables: str) -> Any:
        ranks = len(flops.split(":"))
        return lab.start(
            [
                *("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"),
                *("-m", "far_rank", "--", f"--runs-dir={lab.runs}", "--json", *flags),
            ],
            {
                "GLOO_SOCKET_IFNAME": "lo",
                "FLOPS": flops,
                "BECOMES": becomes or flops,
                "PYTHONPATH": f"{HERE}{os.pathsep}{SOURCE}",
                **variables,
            },
        )

    return start


def result_of(ended: Any) -> dict[str, Any]:
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])  # type: ignore[no-any-return]

"""kill -9 at random moments, again and again: what is learned is as if nothing had happened.

A run is started, killed with SIGKILL (a rank, the host program, or all of it, at a random
moment or in the middle of a save) and resumed, until it has been killed so often and is done. Then
its surviving loss curve must be that of a run that was never killed, every step there exactly once,
and no process and no temporary file may be left.

usage: bench.py [--kills 30] [--kill-ranks 2] [--seed 1] [--tolerance 0] [--out FILE] [flags ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from yoked.agent.jobfolder import ACTIVE, JobFolder
from yoked.journal import read
from yoked.report.loss_plot import read_curve

HERE = Path(__file__).parent
CONFIGURATION = [
    *("--depth=2", "--aspect-ratio=64", "--head-dim=64", "--max-seq-len=128"),
    *("--total-batch-size=2048", "--device-batch-size=4", "--num-iterations=150"),
    *("--save-every=3", "--keep-last=3", "--eval-every=50", "--eval-tokens=2048"),
]
START_LIMIT_S = 120
RUN_LIMIT_S = 900
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Training:
    """One `yoked train` in a process of its own, which can be killed in many ways."""

    def __init__(self, flags: list[str], runs_dir: Path, run: str, ranks: int) -> None:
        self.folder = runs_dir / run
        resumable = (self.folder / "run.json").exists()
        begins = ["--resume"] if resumable else flags
        self.state = runs_dir / "state"
        self.metrics_before = _size(self.folder / "metrics.jsonl")
        self.log = (runs_dir / "output.txt").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", COMMAND, "train", *begins),
                *("--run", run, "--runs-dir", str(runs_dir), "--ranks", str(ranks)),
            ],
            env={**os.environ, "YOKED_STATE": str(self.state)},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.seen: dict[int, psutil.Process] = {}

    def ended(self) -> bool:
        self._look()
        return self.process.poll() is not None

    # Of metrics.jsonl, about.
    line_bytes = 330

    def written_bytes(self) -> int:
        """What this start has written to metrics.jsonl."""
        return _size(self.folder / "metrics.jsonl") - self.metrics_before

    def stepping(self) -> bool:
        """Whether this start has written the figures of a step."""
        return self.written_bytes() > self.line_bytes / 2

    def _look(self) -> dict[str, list[psutil.Process]]:
        """The processes of the run now: its ranks, and the host program that started them."""
        kinds: dict[str, list[psutil.Process]] = {"host program": [], "rank": []}
        for process in psutil.process_iter():
            environment = _environment(process)
            if environment.get("YOKED_JOB_FOLDER", "").startswith(f"{self.state}/"):
                self.seen[process.pid] = process
                kinds["rank" if "RANK" in environment else "host program"].append(process)
        return kinds

    def kill(self, dice: random.Random) -> str:
        """SIGKILL one of the processes, or all and the command that follows; returns which."""
        kinds = {kind: found for kind, found in self._look().items() if found}
        kind = dice.choice(sorted([*kinds, "all"]))
        if kind == "all":
            # As when the machine loses power; the host program first, or it would tell.
            victims = [*kinds.get("host program", ()), *kinds.get("rank", ())]
            self.process.kill()
        else:
            victims = [dice.choice(kinds[kind])]
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return kind

    def wait_for_end(self) -> int:
        """Until all its processes are gone; those that stay are a failure of their own."""
        status = self.process.wait(60)
        self.log.close()
        deadline_s = time.monotonic() + 30
        while left := [*filter(_alive, self.seen.values()), *self._jobs_that_go_on()]:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"processes outlived the run: {left}")
            time.sleep(0.02)
        return status

    def _jobs_that_go_on(self) -> list[str]:
        """Also one whose supervisor has not yet said that it is over."""
        jobs = [JobFolder(path) for path in (self.state / "jobs").glob("[!.]*")]
        return [job.run for job in jobs if job.state in ACTIVE]

    def last_words(self) -> str:
        return "\n".join(Path(self.log.name).read_text(errors="replace").splitlines()[-30:])

    def end_by_force(self) -> None:
        """Whatever is still there; only processes that were seen as ours."""
        self._look()
        for process in self.seen.values():
            if _alive(process):
                process.kill()
        self.process.wait()


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def wait_until(condition: Callable[[], bool], training: Training, limit_s: float) -> bool:
    """Poll often; False when the training ended before."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if training.ended():
            return False
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {limit_s} s in vain:\n{training.last_words()}")
        time.sleep(0.001)
    return True


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being written at this moment."""
    models = folder / "checkpoints" / "base_checkpoints"
    return any(models.glob("*/.yoked-*.part"))


def kill_once(training: Training, dice: random.Random) -> tuple[str, str] | None:
    """Kill at one of the moments that matter; None when the run was done first."""
    moment = dice.choice(["anywhere", "stepping", "stepping", "saving", "saving"])
    if moment == "anywhere":
        # During start-up, or wherever it is by then.
        wait_s, began_s = dice.uniform(0, 8), time.monotonic()
        alive = wait_until(lambda: time.monotonic() - began_s > wait_s, training, RUN_LIMIT_S)
    else:
        alive = wait_until(training.stepping, training, START_LIMIT_S)
        more_bytes = dice.uniform(0, 8) * training.line_bytes
        alive = alive and wait_until(
            lambda: training.written_bytes() > more_bytes, training, RUN_LIMIT_S
        )
        time.sleep(dice.uniform(0, 0.05))
        if alive and moment == "saving":
            alive = wait_until(lambda: saving(training.folder), training, RUN_LIMIT_S)
            time.sleep(dice.uniform(0, 0.01))
    if not alive:
        return None
    return moment, training.kill(dice)


def torture(
    flags: list[str], runs_dir: Path, *, kills: int, ranks: int, seed: int
) -> list[dict[str, object]]:
    """Kill a run `kills` times, then let it finish; returns what was done to it."""
    dice = random.Random(seed)
    done: list[dict[str, object]] = []
    while True:
        training = Training(flags, runs_dir, "killed", ranks)
        try:
            struck = kill_once(training, dice) if len(done) < kills else None
            if struck is None:
                while not training.ended():
                    time.sleep(0.05)
            status = training.wait_for_end()
        except BaseException:
            training.end_by_force()
            raise
        if struck is None:
            if status != 0:
                raise RuntimeError(f"the run ended with {status}:\n{training.last_words()}")
            return done
        steps = (
            len(read_curve(training.folder / "metrics.jsonl").steps)
            if _size(training.folder / "metrics.jsonl")
            else 0
        )
        done.append({"moment": struck[0], "victim": struck[1], "steps_by_then": steps})
        print(f"kill {len(done)}: {struck[1]} while {struck[0]}, after {steps} steps", flush=True)


def untouched(flags: list[str], runs_dir: Path, ranks: int) -> None:
    """The run that is never killed, with the choices that the killed one made by measuring.

    It resumes from that one's run.json, without a checkpoint: from the first step.
    """
    (runs_dir / "untouched").mkdir()
    shutil.copy(runs_dir / "killed" / "run.json", runs_dir / "untouched" / "run.json")
    training = Training(flags, runs_dir, "untouched", ranks)
    try:
        while not training.ended():
            time.sleep(0.05)
        if training.wait_for_end() != 0:
            raise RuntimeError(f"the run ended early:\n{training.last_words()}")
    except BaseException:
        training.end_by_force()
        raise


def strays(folder: Path) -> list[str]:
    """Files and folders that no finished run has (docs/reference/run-folder.md)."""
    known = {"run.json", "result.json", "metrics.jsonl", "events.jsonl", "checkpoints"}
    known |= {"diagnosis.jsonl", "doctor.json", "loss.png", "loss.svg", ".yoked-run"}
    found = [path.name for path in folder.iterdir() if path.name not in known]
    models = folder / "checkpoints" / "base_checkpoints"
    for path in models.glob("*/*"):
        kind = path.name.split("_")[0]
        whole = kind in {"model", "meta", "optim", "manifest"} and path.suffix in {".pt", ".json"}
        if not whole and path.name != ".yoked-lock":
            found.append(path.name)
    return found


def judge(runs_dir: Path, tolerance: float) -> dict[str, object]:
    """The two curves beside each other."""
    killed, whole = (
        read_curve(runs_dir / run / "metrics.jsonl") for run in ("killed", "untouched")
    )
    lines = sum("loss" in line for line in read(runs_dir / "killed" / "metrics.jsonl"))
    largest = (
        max(abs(a - b) for a, b in zip(killed.losses, whole.losses, strict=True))
        if len(killed.losses) == len(whole.losses)
        else float("inf")
    )
    left = strays(runs_dir / "killed")
    return {
        "steps": len(whole.steps),
        "same_steps": killed.steps == whole.steps == list(range(len(whole.steps))),
        "same_evaluations": killed.eval_steps == whole.eval_steps,
        "largest_loss_difference": largest,
        "lines_superseded": lines - len(killed.steps),
        "strays": left,
        "fine": killed.steps == whole.steps == list(range(len(whole.steps)))
        and killed.eval_steps == whole.eval_steps
        and largest <= tolerance
        and not left,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--kill-ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    known, flags = parser.parse_known_args()
    flags = flags or CONFIGURATION
    # A Ctrl-C here ends everything through end_by_force.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="yoked-kill-") as folder:
        runs_dir = Path(folder)
        history = torture(
            flags, runs_dir, kills=known.kills, ranks=known.kill_ranks, seed=known.seed
        )
        untouched(flags, runs_dir, known.kill_ranks)
        verdict = judge(runs_dir, known.tolerance)
    results = {
        "flags": flags,
        "ranks": known.kill_ranks,
        "seed": known.seed,
        "took_s": round(time.monotonic() - began_s, 1),
        "kills": history,
        **verdict,
    }
    known.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({k: v for k, v in results.items() if k not in ("flags", "kills")}))
    return 0 if verdict["fine"] else 1


if __name__ == "__main__":
    sys.exit(main())

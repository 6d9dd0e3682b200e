"""The script of `yoked manifest --for slurm` under a real Slurm: two nodes, started here."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from yoked.cli.commands.manifest import ManifestFlags, make

pytestmark = pytest.mark.distributed

LOCAL_SLURM = Path(__file__).parents[2] / "benchmarks" / "slurm" / "local_slurm.py"
LIMIT_S = 120.0


def local_slurm() -> Any:
    spec = importlib.util.spec_from_file_location("local_slurm", LOCAL_SLURM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    module = local_slurm()
    if missing := module.what_is_missing():
        pytest.skip(missing)
    with module.LocalSlurm(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


def write_script(lab: Any, run: str, **changes: Any) -> Path:
    """The script for a tiny run on both nodes."""
    flags = ManifestFlags(scheduler="slurm", nodes=2, interface="lo", partition="p", time="10:00")
    words = ["train", *lab.flags(matmul="mkl", **changes), f"--run={run}"]
    path: Path = lab.root / f"{run}.sh"
    path.write_text(make(words, flags).text)
    return path


def output(lab: Any) -> str:
    return "\n".join(path.read_text(errors="replace") for path in lab.root.glob("*.log"))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)


def test_sbatch_takes_the_script(slurm: Any, lab: Any) -> None:
    checked = slurm.run("sbatch", "--test-only", str(write_script(lab, "r")))

    assert checked.returncode == 0, checked.stderr
    assert "using 2 processors on nodes n[1-2] in partition p" in checked.stderr


def test_a_job_of_two_tasks_trains_ten_steps(slurm: Any, lab: Any) -> None:
    script = write_script(lab, "ten", num_iterations=10)

    job = slurm.submit(script, environment=lab.environment())

    assert slurm.wait(job, LIMIT_S) == "COMPLETED", output(lab) + slurm.logs()
    curve = lab.curve("ten")
    assert curve.steps == list(range(10))
    assert curve.losses[-1] < curve.losses[0]


@pytest.mark.slow
def test_a_job_that_runs_out_of_time_saves_and_goes_on_when_it_starts_again(
    slurm: Any, lab: Any
) -> None:
    script = write_script(lab, "long", num_iterations=200, eval_every=-1, save_every=-1)
    job = slurm.submit(script, environment=lab.environment())
    until(lambda: lab.lines("long") >= 5)

    # What Slurm sends a minute before the end of the job's time.
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    until(lambda: slurm.state(job) == "PENDING")
    stopped_at = lab.lines("long")
    # In the second of its requeue slurmd takes the job for the one that has just been killed.
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    assert slurm.wait(job, LIMIT_S) == "COMPLETED", output(lab) + slurm.logs()
    lines = (lab.runs / "long" / "metrics.jsonl").read_text().splitlines()
    assert lines[stopped_at].endswith(f'"resumed_at":{stopped_at}}}')
    assert lab.curve("long").steps == list(range(200))


def test_the_cluster_and_its_jobs_die_with_the_one_who_wanted_them(tmp_path: Path) -> None:
    if missing := local_slurm().what_is_missing():
        pytest.skip(missing)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from local_slurm import *\n"
        "with LocalSlurm(Path(sys.argv[2])) as cluster:\n"
        "    cluster.run('sbatch', '--wrap', 'sleep 1000', cwd=Path(sys.argv[2]))\n"
        "    print('up', flush=True); time.sleep(1000)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(LOCAL_SLURM.parent), str(tmp_path / "cluster")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        family = psutil.Process(owner.pid).children(recursive=True)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()

    _, alive = psutil.wait_procs(family, timeout=LIMIT_S)
    assert len(family) >= len(("unshare", "keeper", "munged", "slurmctld", "slurmd", "slurmd"))
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

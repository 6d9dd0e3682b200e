"""A d4 run of 10 steps on two nodes of a Slurm that is started here for the purpose.

The script is what `yoked manifest --for slurm --nodes 2 -- train --depth 4 ...` writes; `sbatch
--test-only` checks it and `sbatch` starts it. The losses must be those of `yoked train` with
two ranks on the same data, to the tolerance: the job is the same run.

usage: bench.py [--steps 10] [--tolerance 1e-4] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from local_slurm import LocalSlurm, what_is_missing

from yoked.report.loss_plot import read_curve

HERE = Path(__file__).parent
YOKED = [sys.executable, "-c", "import sys; from yoked.cli.main import main; sys.exit(main())"]
FLAGS = ["--depth=4", "--device-type=cpu", "--dtype=float32", "--matmul=mkl", "--eval-every=-1"]
LIMIT_S = 900


def yoked(*words: str, folder: Path) -> None:
    # The job of a run on this machine leaves its log there, and not with the person's own.
    environment = {**os.environ, "YOKED_STATE": str(folder / "state")}
    subprocess.run([*YOKED, *words], cwd=folder, env=environment, check=True)


def run_under_slurm(folder: Path, flags: list[str]) -> dict[str, Any]:
    """Write the script, check it, run it; returns how the job ended."""
    launch = ["manifest", "--for", "slurm", "--nodes", "2", "--interface", "lo"]
    launch += ["--partition", "p", "--time", "15:00", "--output", "job.sh"]
    yoked(*launch, "--", "train", *flags, "--run", "slurm", folder=folder)
    with LocalSlurm(folder / "cluster") as cluster:
        checked = cluster.run("sbatch", "--test-only", "job.sh", cwd=folder)
        job = cluster.submit(folder / "job.sh", environment={})
        state = cluster.wait(job, LIMIT_S)
        if state != "COMPLETED":
            log = "".join(path.read_text() for path in folder.glob("slurm.*.log"))
            raise RuntimeError(f"the job ended as {state}:\n{log}")
        version = cluster.run("sinfo", "--version").stdout.strip()
    return {"slurm": version, "test_only": checked.stderr.strip(), "state": state}


def losses(folder: Path, run: str) -> list[float]:
    return [float(loss) for loss in read_curve(folder / "runs" / run / "metrics.jsonl").losses]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "results.json")
    known = parser.parse_args()
    if missing := what_is_missing():
        print(missing, file=sys.stderr)
        return 1
    flags = [*FLAGS, f"--num-iterations={known.steps}"]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="yoked-slurm-") as name:
        folder = Path(name)
        job = run_under_slurm(folder, flags)
        yoked("train", *flags, "--ranks", "2", "--run", "here", folder=folder)
        slurm, here = losses(folder, "slurm"), losses(folder, "here")
    apart = max(abs(a - b) for a, b in zip(slurm, here, strict=True))
    results = {
        "flags": flags,
        **job,
        "losses_slurm": slurm,
        "losses_here": here,
        "largest_loss_difference": apart,
        "fine": len(slurm) == known.steps and apart <= known.tolerance,
    }
    known.out.parent.mkdir(parents=True, exist_ok=True)
    known.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({key: results[key] for key in ("state", "largest_loss_difference", "fine")}))
    return 0 if results["fine"] else 1


if __name__ == "__main__":
    sys.exit(main())

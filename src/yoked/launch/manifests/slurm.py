"""A batch script for Slurm: one torchrun a node, saving and requeueing before the time is up.

The script has three parts: what is asked of Slurm, the run as shell variables, and slurm.sh,
which is the same for every run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from yoked.launch.manifests.spec import Manifest, ManifestSpec, require_match

SAVE_SIGNAL_S = 60
"""How long before the end of a job's time Slurm tells the script."""

_HERE = Path(__file__).parent
_PLAIN = re.compile(r"[\w.,+-]+")
# minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}")


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What only Slurm is asked for; None takes the cluster's default."""

    time: str | None = None
    partition: str | None = None
    account: str | None = None

    def __post_init__(self) -> None:
        require_match("--time", self.time, _TIME, "a time such as 2:00:00, or 1-12:00:00 with days")
        require_match("--partition", self.partition, _PLAIN, "the name of a partition")
        require_match("--account", self.account, _PLAIN, "the name of an account")


def sbatch_script(spec: ManifestSpec, options: SlurmOptions) -> Manifest:
    """The run as a script for `sbatch`."""
    size = f"{spec.nodes} x {spec.ranks_per_node} ranks"
    parts = [
        "#!/bin/bash",
        f"# Run {_plain_name(spec.run)}, {size}; written by `yoked manifest --for slurm`.",
        *(f"#SBATCH {line}" for line in _directives(spec, options)),
        "",
        "# Load what the program needs here, such as: module load cuda",
        *_environment(spec),
        "",
        *_variables(spec),
        "",
        _shell("pick_interface.sh"),
        _shell("slurm.sh"),
    ]
    return Manifest("sbatch", "\n".join(parts), tuple(_notes(spec, options)))


def _directives(spec: ManifestSpec, options: SlurmOptions) -> list[str]:
    """Options of sbatch; all values have been checked, because nothing here can be quoted."""
    name = _plain_name(spec.run)
    asked: list[tuple[str, str | int | None]] = [
        ("job-name", name),
        ("nodes", spec.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", spec.cpus_per_node),
        ("gpus-per-node", spec.gpus_per_node),
        ("time", options.time),
        ("partition", options.partition),
        ("account", options.account),
        ("output", f"{name}.%j.log"),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{SAVE_SIGNAL_S}"),
    ]
    lines = [f"--{option}={value}" for option, value in asked if value is not None]
    return [*lines, "--requeue"]


def _environment(spec: ManifestSpec) -> list[str]:
    if spec.adapters is None:
        return ["# InfiniBand rails for NCCL: export NCCL_IB_HCA=mlx5_0,mlx5_1"]
    return [f"export NCCL_IB_HCA={shlex.quote(spec.adapters)}"]


def _variables(spec: ManifestSpec) -> list[str]:
    program = spec.program
    return [
        f"run={shlex.quote(spec.run)}",
        f"python={shlex.quote(spec.python)}",
        f"ranks_per_node={spec.ranks_per_node}",
        f"restarts={spec.restarts}",
        "# Pattern for the interface of NCCL and Gloo; empty leaves it to them.",
        f"interface={shlex.quote(spec.interface or '')}",
        f"target={_array(program.torchrun_target)}",
        f"first_args={_array(program.args)}",
        "# From the second start on, once the run has a run.json in its folder:",
        f"resume_args={_array(program.resume_args)}",
        f"run_folder={shlex.quote(program.run_folder or '')}",
    ]


def _array(words: Iterable[str]) -> str:
    return f"({shlex.join(words)})"


def _notes(spec: ManifestSpec, options: SlurmOptions) -> Iterable[str]:
    if spec.cpus_per_node is None:
        yield "without --cpus-per-node a node gives the cluster's default, often one CPU"
    if options.time is None:
        yield "without --time the partition's limit holds"
    if spec.program.run_folder is None and spec.restarts == 0:
        yield (
            "the job is not requeued at the end of its time; for a program that goes on from "
            "a checkpoint of its own, --restarts says how often it may be"
        )


def _plain_name(run: str) -> str:
    """A run's name for a line of #SBATCH, in which % and spaces have a meaning."""
    return re.sub(r"[^\w.-]", "-", run)


def _shell(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")

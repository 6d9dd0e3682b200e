"""`yoked manifest`: the run as a script for Slurm or manifests for Kubernetes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from yoked.cli.flags import flag
from yoked.cli.output import Output
from yoked.core.fs import backup_name
from yoked.core.names import path_word
from yoked.errors import UsageError, YokedError
from yoked.launch.manifests.slurm import SlurmOptions, sbatch_script
from yoked.launch.manifests.spec import (
    POD_STORAGE,
    Manifest,
    ManifestSpec,
    Program,
)
from yoked.runs import new_run_name, stamp
from yoked.train.config import TrainConfig
from yoked.train.flags import parse_flags

Scheduler = Literal["slurm", "kubernetes"]

WRITTEN = Group("Manifest", sort_key=1)
NODES = Group("Nodes", sort_key=2)
SLURM = Group("Slurm", sort_key=3)
KUBERNETES = Group("Kubernetes", sort_key=4)


@dataclass(frozen=True, kw_only=True)
class ManifestFlags:
    """The flags of `yoked manifest`; None leaves a thing to its default."""

    scheduler: Annotated[Scheduler, flag(WRITTEN, "Who starts the ranks.", name="--for")]
    output: Annotated[Path | None, flag(WRITTEN, "File to write. Default: stdout.")] = None
    json_output: Annotated[
        bool,
        flag(WRITTEN, "Print one JSON object instead of text.", name="--json", negative=""),
    ] = False
    # --- nodes
    nodes: Annotated[int, flag(NODES, "Machines.")] = 1
    ranks_per_node: Annotated[
        int | None, flag(NODES, "Training processes on each. Default: one for each GPU, or 1.")
    ] = None
    gpus_per_node: Annotated[int | None, flag(NODES, "GPUs to ask for on each.")] = None
    cpus_per_node: Annotated[int | None, flag(NODES, "CPUs to ask for on each.")] = None
    interface: Annotated[
        str | None,
        flag(NODES, "Network interface of NCCL and Gloo, by name or pattern: eth0, ib*."),
    ] = None
    rails: Annotated[
        str | None, flag(NODES, "InfiniBand adapters of NCCL, such as mlx5_0,mlx5_1.")
    ] = None
    restarts: Annotated[int, flag(NODES, "New tries after a failure.")] = 0
    python: Annotated[
        str | None, flag(NODES, "Python on the nodes. Default: on Slurm this one, else python.")
    ] = None
    # --- Slurm
    time: Annotated[
        str | None, flag(SLURM, "Time limit, as 2:00:00; at its end the job is requeued.")
    ] = None
    partition: Annotated[str | None, flag(SLURM, "Partition.")] = None
    account: Annotated[str | None, flag(SLURM, "Account.")] = None
    # --- Kubernetes
    image: Annotated[
        str | None, flag(KUBERNETES, "Container image with Python, torch and the program.")
    ] = None
    namespace: Annotated[str | None, flag(KUBERNETES, "Namespace.")] = None
    storage: Annotated[
        str | None, flag(KUBERNETES, "PersistentVolumeClaim for runs and prepared data.")
    ] = None

    @property
    def ranks(self) -> int:
        """Ranks on each node."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        return self.gpus_per_node if self.gpus_per_node is not None else 1


def command(
    *program: Annotated[str, Parameter(help="train FLAGS, or SCRIPT ARGS, or -m MODULE ARGS.")],
    flags: Annotated[ManifestFlags, Parameter(name="*")],
) -> int:
    """Write the same run for a cluster: `yoked manifest --for slurm --nodes 2 -- train --depth 8`.

    It starts nothing: `sbatch` and `kubectl apply -f` do. Behind `--` stands `train` with its
    flags, a script, or `-m` and a module, with their arguments.
    """
    return report(flags, make(program, flags), Output(json_mode=flags.json_output))


def make(words: Sequence[str], flags: ManifestFlags) -> Manifest:
    """The manifest that a command line asks for. Raises UsageError."""
    _check(flags)
    run, program = _read_program(words, flags)
    spec = ManifestSpec(
        run=run,
        program=program,
        nodes=flags.nodes,
        ranks_per_node=flags.ranks,
        gpus_per_node=flags.gpus_per_node,
        cpus_per_node=flags.cpus_per_node,
        restarts=flags.restarts,
        interface=flags.interface,
        adapters=flags.rails,
        python=flags.python or (sys.executable if flags.scheduler == "slurm" else "python"),
    )
    if flags.scheduler == "slurm":
        options = SlurmOptions(time=flags.time, partition=flags.partition, account=flags.account)
        return sbatch_script(spec, options)
    # YAML is for Kubernetes alone.
    from yoked.launch.manifests.kubernetes import KubernetesOptions, manifest

    assert flags.image is not None
    where = KubernetesOptions(image=flags.image, namespace=flags.namespace, storage=flags.storage)
    return manifest(spec, where)


_FOREIGN = {
    "slurm": ("image", "namespace", "storage"),
    "kubernetes": ("time", "partition", "account"),
}


def _check(flags: ManifestFlags) -> None:
    for name in _FOREIGN[flags.scheduler]:
        if getattr(flags, name) is not None:
            other = "kubernetes" if flags.scheduler == "slurm" else "slurm"
            raise UsageError(
                f"--{name} means nothing to {flags.scheduler}",
                fix=f"leave it out, or say --for {other}",
            )
    if flags.gpus_per_node is not None and flags.ranks_per_node is not None:
        raise UsageError(
            "--gpus-per-node starts one rank for each GPU, and --ranks-per-node says otherwise",
            fix="give one of the two",
        )
    if flags.scheduler == "kubernetes" and flags.image is None:
        raise UsageError(
            "a pod needs an image with Python, torch and the program, and none is named",
            fix="--image REGISTRY/NAME:TAG",
        )


def report(flags: ManifestFlags, made: Manifest, output: Output) -> int:
    """Write a manifest where it is wanted, and what its owner should know to stderr."""
    file = flags.output
    if file is not None:
        try:
            if file.is_file():
                # Somebody may have changed it.
                old = file.replace(backup_name(file))
                output.note(f"the {file.name} that was there is {old} now")
            if made.holds_secret:
                # Before the text is in it, and also where it is no plain file.
                file.touch(0o600)
                file.chmod(0o600)
            file.write_text(made.text, encoding="utf-8")
        except OSError as problem:
            raise YokedError(
                f"{file} cannot be written: {problem.strerror}",
                fix="name another file with --output",
            ) from problem
    for note in made.notes:
        output.note(note)
    if file is None and not output.json_mode:
        output.text(made.text)
        return 0
    files = [] if file is None else [str(file)]
    starts = "sbatch" if flags.scheduler == "slurm" else "kubectl apply -f"
    output.result(
        {"for": flags.scheduler, "kind": made.kind, "text": made.text, "files": files},
        verdict=f"written: {file}",
        next_commands=[] if file is None else [f"{starts} {path_word(file)}"],
    )
    return 0


# --- the program


def _read_program(words: Sequence[str], flags: ManifestFlags) -> tuple[str, Program]:
    """The run's name and what it runs. Raises UsageError."""
    if not words:
        raise UsageError(
            "no program is named",
            fix=f"yoked manifest --for {flags.scheduler} --nodes 2 -- train --depth 8",
        )
    first, rest = words[0], tuple(words[1:])
    now = datetime.now().astimezone()
    if first == "train":
        return _read_train(rest, flags, now)
    if first == "-m":
        if not rest:
            raise UsageError("-m names no module", fix="-- -m MODULE ARGS")
        return _name_after(rest[0], now), Program(kind="module", name=rest[0], args=rest[1:])
    if first.startswith("-"):
        raise UsageError(
            f"{first} stands where a program should", fix="-- train FLAGS, SCRIPT or -m MODULE"
        )
    script = Path(first)
    if flags.scheduler == "slurm" and not script.is_absolute() and not script.exists():
        raise UsageError(
            f"there is no file {first} in {Path.cwd()}, from where the job would start it",
            fix="write where it is on the nodes, as a path from /",
        )
    return _name_after(script.stem, now), Program(kind="script", name=first, args=rest)


def _name_after(program: str, now: datetime) -> str:
    return f"{program.rpartition('.')[2]}-{stamp(now)}"


def _read_train(words: tuple[str, ...], flags: ManifestFlags, now: datetime) -> tuple[str, Program]:
    config = parse_flags(words, program="yoked train")
    _check_train(config, flags)
    if flags.scheduler == "kubernetes" and any(word.startswith("--config") for word in words):
        raise UsageError(
            "--config names a file of this machine, which a pod does not have",
            fix="write its flags on the line",
        )
    runs_dir = Path(POD_STORAGE, "runs") if flags.scheduler == "kubernetes" else config.runs_dir
    run = config.run or new_run_name(runs_dir, now)
    args = list(words)
    if config.run is None:
        args += ["--run", run]
    if runs_dir != config.runs_dir:
        args += ["--runs-dir", str(runs_dir)]
    again = ["--resume", "--run", run, "--runs-dir", str(runs_dir)]
    return run, Program(
        kind="module",
        name="yoked.train",
        args=tuple(args),
        run_folder=str(runs_dir / run),
        # What a person asks of a run that goes on, such as more steps, holds in each start.
        resume_args=tuple(args if config.resume else again),
    )


def _check_train(config: TrainConfig, flags: ManifestFlags) -> None:
    """Refuse what `yoked train` allows and a cluster cannot mean."""
    if config.ranks is not None:
        raise UsageError(
            f"--ranks {config.ranks} counts processes on one machine",
            fix="leave it out: --nodes and --ranks-per-node say how many there are",
        )
    config.check_world(flags.nodes * flags.ranks)
    if config.resume_from_step is not None:
        raise UsageError(
            "--resume-from-step: a job that starts again would go back to that step again",
            fix="start a new run from that checkpoint with --from FOLDER, or give --resume",
        )
    if config.resume and config.run is None:
        raise UsageError(
            "--resume goes on with the latest run, which may be another when the job starts",
            fix="name it: --resume --run NAME",
        )
    if flags.scheduler == "kubernetes" and config.runs_dir != Path("runs"):
        raise UsageError(
            f"--runs-dir {config.runs_dir} is a folder of a pod, which ends with it",
            fix=f"leave it out: runs are kept in {POD_STORAGE}/runs, on the claim of --storage",
        )
    taken = config.run is not None and (config.runs_dir / config.run / "run.json").exists()
    if flags.scheduler == "slurm" and taken and not config.resume:
        run = shlex.quote(config.run or "")
        raise UsageError(
            f"there is a run named {config.run} in {config.runs_dir} already",
            fix=f"another --run NAME, or go on with it: -- train --resume --run {run}",
        )

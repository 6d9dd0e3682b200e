"""What a manifest says, whichever scheduler it is for. Plain data, checked once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from yoked.errors import UsageError

ProgramKind = Literal["module", "script"]

POD_STORAGE = "/yoked"
"""Where the storage is in a pod: runs in runs/, prepared data in cache/."""

_INTERFACE = re.compile(r"[\w.*?@-]+")
_ADAPTERS = re.compile(r"[\w.:-]+(,[\w.:-]+)*")


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program that each rank runs.

    run_folder: folder of the run, for a program that writes a run.json there and then goes on
    from its newest checkpoint when it is started with `resume_args`; None for any other.
    """

    kind: ProgramKind
    name: str
    args: tuple[str, ...] = ()
    run_folder: str | None = None
    resume_args: tuple[str, ...] = ()

    @property
    def torchrun_target(self) -> tuple[str, ...]:
        """The program as torchrun's last arguments.

        Behind `--` an argument of the program such as --run is not taken for the beginning of
        one of torchrun's own options.
        """
        return ("-m", "--", self.name) if self.kind == "module" else ("--", self.name)


@dataclass(frozen=True, kw_only=True)
class ManifestSpec:
    """A run on equal nodes of a cluster. Raises UsageError when made from what cannot be meant.

    interface: name of a network interface, with * and ? as in a shell; each node takes its
    first that is up. None leaves the choice to NCCL and Gloo.
    adapters: InfiniBand adapters for NCCL_IB_HCA, the rails. gpus_per_node and cpus_per_node:
    None asks the scheduler for nothing. restarts: new tries after a failure.
    """

    run: str
    program: Program
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    restarts: int = 0
    interface: str | None = None
    adapters: str | None = None
    python: str = "python"

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--nodes", self.nodes, 1),
            ("--gpus-per-node", self.gpus_per_node, 1),
            ("--ranks-per-node", self.ranks_per_node, 1),
            ("--cpus-per-node", self.cpus_per_node, 1),
            ("--restarts", self.restarts, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{flag} {value} is too small", fix=f"give {least} or more")
        require_match("--interface", self.interface, _INTERFACE, "a name such as eth0, or ib*")
        require_match("--rails", self.adapters, _ADAPTERS, "adapters such as mlx5_0,mlx5_1")

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Manifest:
    """Text for a scheduler. kind: sbatch or job; notes: what its owner should know.

    holds_secret: only its owner is to read it.
    """

    kind: str
    text: str
    notes: tuple[str, ...] = field(default=())
    holds_secret: bool = False


def require_match(flag: str, value: str | None, form: re.Pattern[str], wanted: str) -> None:
    """Raise UsageError unless a value that is given has the form that the scheduler takes."""
    if value is not None and not form.fullmatch(value):
        raise UsageError(f"{flag} {value!r} cannot be meant", fix=f"give {wanted}")

"""`yoked probe`: measure the fleet's links, collectives and processors."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from yoked.cli.flags import FleetFile, JsonFlag, flag
from yoked.cli.interrupt import ends_as_interrupt
from yoked.cli.live import StatusLine
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.train.config import TrainConfig
from yoked.units import parse_duration_s

MODEL = Group("Model", sort_key=1)


@dataclass(frozen=True)
class ModelFlags:
    """The model whose step is measured, by the flags of `yoked train`."""

    depth: Annotated[int, flag(MODEL, "Layers of the model; width follows.")] = 4
    aspect_ratio: Annotated[int, flag(MODEL, "Width is depth times this.")] = 64
    head_dim: Annotated[
        int | None, flag(MODEL, "Width of one attention head. Default: 64, on CUDA 128.")
    ] = None
    max_seq_len: Annotated[
        int | None, flag(MODEL, "Tokens in a row. Default: 512, on CUDA 2048.")
    ] = None
    window_pattern: Annotated[
        str | None, flag(MODEL, "Attention windows. Default: L, on CUDA SSSL.")
    ] = None
    vocab_size: Annotated[int, flag(MODEL, "Tokens in the vocabulary.")] = 32_768
    device_batch_size: Annotated[
        int | None, flag(MODEL, "Rows of a micro-batch. Default: 2, on MPS 8, on CUDA 32.")
    ] = None
    device_type: Annotated[str, flag(MODEL, "Where to compute: auto, cpu, cuda or mps.")] = "auto"

    def config(self) -> TrainConfig:
        """The trainer's configuration. Raises UsageError for invalid values."""
        from yoked.train.resolve import resolve

        config = TrainConfig(**dataclasses.asdict(self))
        # The hosts' devices are not known yet: refuse only what no device can compute.
        resolve(config, "cpu" if self.device_type == "auto" else self.device_type)
        return config

    def to_args(self) -> list[str]:
        """Arguments for the trainer's command line."""
        values = dataclasses.asdict(self)
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in values.items()
            if value is not None
        ]


def command(
    *,
    model: Annotated[ModelFlags, Parameter(name="*")] = ModelFlags(),
    fleet: FleetFile = None,
    quick: Annotated[bool, Parameter(help="Shorter and less exact.", negative="")] = False,
    links: Annotated[bool, Parameter(help="Measure raw TCP between all hosts.")] = True,
    collectives: Annotated[
        bool, Parameter(help="Measure all_reduce, all_gather and reduce_scatter.")
    ] = True,
    compute: Annotated[
        bool, Parameter(help="Measure products, memory and a training step on each host.")
    ] = True,
    collectives_limit: Annotated[
        str, Parameter(help="What the collectives may take; larger sizes are left out.")
    ] = "6 s",
    json_output: JsonFlag = False,
) -> int:
    """Measure the links, the collectives and the compute of a fleet, or of this machine.

    The result is kept, and `yoked plan` starts from it. Nothing but yoked's own cache stays
    behind on the hosts.
    """
    from yoked.cli.commands.probe_text import report
    from yoked.workflows.probe_job import ProbeRequest, probe_fleet

    if not (links or collectives or compute):
        raise UsageError("nothing is left to measure", fix="yoked probe    measures everything")
    limit_s = parse_duration_s(collectives_limit, "--collectives-limit")
    if not limit_s > 0:
        raise UsageError(
            f"--collectives-limit {collectives_limit!r}: no time", fix="--no-collectives"
        )
    device = model.config().device_type
    opened, output = open_fleet(fleet), Output(json_mode=json_output)
    request = ProbeRequest(
        links=links,
        collectives=collectives,
        compute=compute,
        quick=quick,
        limit_s=limit_s,
        model=model.to_args(),
        device=device,
    )
    # Nobody waits for the figures any more: what was started for them ends too.
    with ends_as_interrupt(signal.SIGTERM, signal.SIGHUP), StatusLine(output) as status:
        result = probe_fleet(opened, request, status.show)
    return report(result, output)

"""`yoked plot`: the loss curve of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.copies import with_newest_lines
from yoked.cli.flags import JsonFlag, RunsDir
from yoked.cli.output import Output


def command(
    run: Annotated[
        str | None, Parameter(help="Name or folder of a run. Default: the latest.")
    ] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Draw the loss curve of a run, as PNG and SVG in its folder.

    Of a run on a fleet that was brought here, what is new of its lines comes first.
    """
    output = Output(json_mode=json_output)
    folder = with_newest_lines(run, runs_dir, output)
    from yoked.report.loss_plot import plot_loss

    png, svg = plot_loss(folder)
    output.result(
        {"run": folder.name, "dir": str(folder), "png": str(png), "svg": str(svg)},
        verdict=f"drew the loss curve of run {folder.name}",
        evidence=[str(png), str(svg)],
    )
    return 0

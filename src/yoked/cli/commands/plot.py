"""`yoked plot`: the loss curve of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import JsonFlag, RunsDir
from yoked.cli.output import Output
from yoked.runs import find_run


def command(
    run: Annotated[
        str | None, Parameter(help="Name or folder of a run. Default: the latest.")
    ] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Draw the loss curve of a run, as PNG and SVG in its folder."""
    folder = find_run(run, runs_dir)
    from yoked.report.loss_plot import plot_loss

    png, svg = plot_loss(folder)
    Output(json_mode=json_output).result(
        {"run": folder.name, "dir": str(folder), "png": str(png), "svg": str(svg)},
        verdict=f"drew the loss curve of run {folder.name}",
        evidence=[str(png), str(svg)],
    )
    return 0

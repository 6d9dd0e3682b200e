"""The benchmark's plot: the speed of each row, and the communication of a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from yoked.report.bench_table import BenchRow, BenchTable
from yoked.report.drawing import (
    BLUE,
    GREY,
    ORANGE,
    PALE_BLUE,
    REFERENCE,
    drawing,
    label,
    legend_above,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.62
# Height of the curve of processes, in rows of the bars above it.
_CURVE_ROWS = 5.0


def plot_bench(table: BenchTable, path: Path) -> Path:
    """Draw the table into a .png, .svg or .pdf file; returns its path.

    Raises YokedError if the file cannot be written.
    """
    with drawing():
        save(_figure(table), path)
    return path


def _figure(table: BenchTable) -> Figure:
    from matplotlib.figure import Figure

    networked = [row for row in table.rows if row.allreduce_s is not None]
    curve = table.processes if len(table.processes) > 2 else []  # two are no curve
    heights = [len(table.rows) + 1.2]
    heights += [len(networked) + 1.2] if networked else []
    heights += [_CURVE_ROWS] if curve else []
    figure = Figure(figsize=(8, 0.8 + 0.45 * sum(heights)), layout="constrained")
    panels = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    _draw_speeds(panels.pop(0), table)
    if networked:
        _draw_allreduce(panels.pop(0), networked)
    if curve:
        _draw_processes(panels.pop(0), curve)
    figure.suptitle(table.verdict(), fontsize=11, x=0.02, ha="left")
    return figure


def _draw_speeds(axes: Axes, table: BenchTable) -> None:
    positions = range(len(table.rows))
    speeds = [row.tokens_per_second for row in table.rows]
    colours = [BLUE if len(row.hosts) > 1 else PALE_BLUE for row in table.rows]
    axes.barh(positions, speeds, _BAR, color=colours)
    for position, speed in zip(positions, speeds, strict=True):
        label(axes, f"{speed:,.0f}", (speed, position), 4)
    if len(table.single_host) > 1:
        total = sum(table.single_host.values())
        axes.axvline(total, **REFERENCE)
        label(axes, "sum of all alone", (total, -0.75), -4, color=GREY)
    _name_rows(axes, [row.name for row in table.rows], above=1.0)  # with the label of the sum
    axes.set_xlabel("tokens per second")


def _draw_allreduce(axes: Axes, rows: list[BenchRow]) -> None:
    series = (
        ("all-reduce, measured", BLUE, [row.allreduce_s for row in rows]),
        ("predicted", PALE_BLUE, [row.predicted_allreduce_s for row in rows]),
        ("exposed in a step", ORANGE, [row.exposed_comm_s for row in rows]),
    )
    for number, (name, colour, values) in enumerate(series):
        positions = [position + (number - 1) * _BAR / 3 for position in range(len(rows))]
        lengths = [value or 0.0 for value in values]
        axes.barh(positions, lengths, _BAR / 3, color=colour, label=name)
    _name_rows(axes, [row.name for row in rows])
    axes.set_xlabel("seconds")
    legend_above(axes)


def _draw_processes(axes: Axes, rows: list[BenchRow]) -> None:
    counts = [row.ranks for row in rows]
    speeds = [row.tokens_per_second for row in rows]
    ideal = [speeds[0] / counts[0] * count for count in counts]
    axes.plot(counts, ideal, label="ideal", **REFERENCE)
    axes.plot(counts, speeds, color=BLUE, marker="o", label="measured")
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"processes on {rows[0].hosts[0]}")
    axes.set_ylabel("tokens per second")
    legend_above(axes)


def _name_rows(axes: Axes, names: list[str], above: float = 0.6) -> None:
    """Name the rows, the first on top. above: room over it, in rows."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -above)
    axes.margins(x=0.12)

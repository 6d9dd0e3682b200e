"""Pictures of results, alike in all benchmarks and to the byte on every repetition."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

matplotlib.rcParams.update({"svg.hashsalt": "yoked", "font.size": 10})

COLOURS = ("#c9d6e6", "#9db8d9", "#1f4e8c", "#b4501e", "#6b8e23", "#7a5195")
GREY = "#6b6b6b"


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches that belongs to no window."""
    return Figure(figsize=(width, height), layout="constrained")


def mark(axes: Axes, value: float, *, across: bool) -> None:
    """A dashed line at a value: across the picture at a y, or down it at an x."""
    draw = axes.axhline if across else axes.axvline
    draw(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)


def plain(axes: Axes, title: str) -> None:
    """Title to the left, and no frame above and to the right."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """As SVG, without the date."""
    figure.savefig(path, metadata={"Date": None, "Creator": "yoked"})

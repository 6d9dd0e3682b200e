"""The style of all plots, and how they are written: matplotlib's defaults with our settings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from yoked.core.faults import fault
from yoked.core.fs import NO_ROOM, disk_full, nearest_folder, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE_BLUE, BLUE, ORANGE, GREY = "#9db8d9", "#1f4e8c", "#b4501e", "#6b6b6b"
# What curves and bars are compared with.
REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 3))}
_STYLE: dict[str, Any] = {
    # With a fixed salt and no date the same figures give the same file.
    "svg.hashsalt": "yoked",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def drawing(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw in this context, without a display. more: settings besides those of all plots.

    matplotlib reads a matplotlibrc from the working directory, which may be anybody's: with
    text.usetex it runs latex on text of that file. So the context starts from the defaults.
    """
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        # The stubs want literal names of settings; here they are data.
        cast("dict[str, Any]", matplotlib.rcParams).update({**_STYLE, **(more or {})})
        yield


def label(axes: Axes, text: str, at: tuple[float, float], offset: int, **style: Any) -> None:
    """Write so many points to the right of a place, or to the left of it."""
    side = "left" if offset > 0 else "right"
    axes.annotate(
        text, at, xytext=(offset, 0), textcoords="offset points", va="center", ha=side, **style
    )


def legend_above(axes: Axes) -> None:
    """Put the legend in one row above a panel, where no curve and no bar can come."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(axes.get_legend_handles_labels()[0]),
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
        columnspacing=1.5,
    )


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a .png, .svg or .pdf file. Raises YokedError where it cannot be."""
    # Without these the files would name matplotlib's version, and two of them the time.
    metadata = {
        ".png": {"Software": "yoked"},
        ".svg": {"Creator": "yoked", "Date": None},
        ".pdf": {"Creator": "yoked", "CreationDate": None},
    }
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=metadata[path.suffix])
    # In one rename: a viewer that watches the file never sees half of it.
    try:
        write_bytes(path, content.getvalue())
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise disk_full(path, None) from problem
        reason, parent = problem.strerror or problem, nearest_folder(path.parent)
        raise fault("write-failed", path=path, reason=reason, parent=parent) from problem

"""The style of all plots: matplotlib's defaults with our settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

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

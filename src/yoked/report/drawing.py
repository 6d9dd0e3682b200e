"""The style of all pictures: matplotlib's own defaults, and our settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

_STYLE: dict[str, Any] = {
    # A fixed salt (and no date): the same figures give the same file.
    "svg.hashsalt": "yoked",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def drawing(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw here, without a display. more: settings beside those of all pictures.

    matplotlib obeys a matplotlibrc in the folder where a person stands, which may be anybody's:
    with text.usetex in it, it runs latex on text of that file. So it begins from its own defaults.
    """
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        # Its stubs know the names of settings, which are data here.
        cast("dict[str, Any]", matplotlib.rcParams).update({**_STYLE, **(more or {})})
        yield

"""Where the legends of a figure lie."""

from __future__ import annotations

from matplotlib.figure import Figure


def require_legends_above(figure: Figure) -> None:
    """Assert that each legend lies above its own panel, clear of all others, and in the picture."""
    figure.draw_without_rendering()
    legends = [legend for axes in figure.axes if (legend := axes.get_legend()) is not None]
    assert legends
    for legend in legends:
        place = legend.get_window_extent()
        assert legend.axes is not None
        assert place.y0 >= legend.axes.bbox.y1 - 1
        assert not any(place.overlaps(axes.bbox.padded(-1)) for axes in figure.axes)
        assert figure.bbox.x0 <= place.x0 < place.x1 <= figure.bbox.x1
        assert place.y1 <= figure.bbox.y1

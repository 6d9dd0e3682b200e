"""Curves of braille dots, two across and four down in each cell, with their axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from yoked.units import format_count
from yoked.watch.terminal.ink import Line, Span, line, padded

# Bits of Unicode's braille patterns, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LEVELS = "▁▂▃▄▅▆▇█"
_MARK = "o"


def four(value: float) -> str:
    """A value in five cells, such as `3.211` or `12.3k`."""
    return format_count(round(value)) if abs(value) >= 1000 else f"{value:.4g}"[:6]


@dataclass(frozen=True)
class Curve:
    """What is drawn. ys: None is a gap. marks: points beside the curve, in units of their own:
    `mark_scale` of them are one of the curve's, and its axis stands on the right.
    """

    title: Sequence[Span | str | tuple[str, str]]
    xs: Sequence[float]
    ys: Sequence[float | None]
    style: str
    axis: str = "step"
    from_zero: bool = False
    marks: Sequence[tuple[float, float]] = ()
    mark_scale: float = 1.0

    @property
    def is_drawn(self) -> bool:
        """Whether there is a point of it at all."""
        return any(_is_number(y) for y in self.ys)


def draw(curve: Curve, cells: int, rows: int) -> list[Line]:
    """A title, so many rows of the curve less two, and the axis of steps."""
    plot_rows = rows - 2
    values = [y for y in curve.ys if y is not None and _is_number(y)]
    if not values or plot_rows < 1:
        return [line(*curve.title)]
    marked = [value / curve.mark_scale for _, value in curve.marks]
    low, high = min(*values, *marked, values[0]), max(*values, *marked, values[0])
    low = min(low, 0.0) if curve.from_zero else low
    if high - low < 1e-9 * max(abs(high), 1e-9):
        low, high = low - (abs(low) or 1.0) * 0.01, high + (abs(high) or 1.0) * 0.01
    told = _told(low, high, plot_rows)
    left = ["" if value is None else four(value) for value in told]
    right = ["" if value is None else four(value * curve.mark_scale) for value in told]
    left_cells = max(5, *map(len, left))
    right_cells = max(map(len, right)) + 1 if curve.marks else 0
    width = cells - left_cells - 2 - right_cells
    if width < 4:
        return [line(*curve.title)]
    first, last = curve.xs[0], curve.xs[-1]
    plot = _Plot(width, plot_rows, (first, last), (low, high))
    plot.curve(curve.xs, curve.ys)
    for step, value in curve.marks:
        plot.mark(step, value / curve.mark_scale)
    drawn = [line(*curve.title)]
    for place, row in enumerate(plot.rows(curve.style)):
        edge = f"{padded(left[place], left_cells, right=True)} ┤"
        beyond = [(f" {right[place]}", "dim")] if curve.marks else []
        drawn.append(line((edge, "dim"), *row, *beyond))
    drawn.append(line((" " * (left_cells + 1) + _axis(curve.axis, first, last, width), "dim")))
    return drawn


def _told(low: float, high: float, rows: int) -> list[float | None]:
    """The values that stand beside the rows: the highest, the lowest, and one between them."""
    told: list[float | None] = [None] * rows
    told[0], told[-1] = high, low
    if rows >= 7:
        told[rows // 2] = high - (high - low) * (rows // 2) / (rows - 1)
    return told


def _axis(name: str, first: float, last: float, width: int) -> str:
    """The axis below so many cells; its name up to a comma, where there is little room."""
    begins, ends = f"└ {first:,.0f} ", f" {last:,.0f}"
    room = width + 1 - len(begins) - len(ends)
    named = f" {name} "
    if room < len(named):
        named = f" {name.partition(',')[0]} "
    if room < len(named):
        return f"{begins}{ends}"
    before = (room - len(named)) // 2
    return f"{begins}{'─' * before}{named}{'─' * (room - len(named) - before)}{ends}"


class _Plot:
    """A grid of dots."""

    def __init__(
        self, cells: int, rows: int, xs: tuple[float, float], ys: tuple[float, float]
    ) -> None:
        self._cells, self._rows, self._xs, self._ys = cells, rows, xs, ys
        self._bits = [bytearray(cells) for _ in range(rows)]
        self._marks = set[tuple[int, int]]()

    def curve(self, xs: Sequence[float], ys: Sequence[float | None]) -> None:
        before: tuple[int, int] | None = None
        for x, y in zip(xs, ys, strict=False):
            if y is None or not _is_number(y):
                before = None
                continue
            now = self._place(x, y)
            if now != before:
                self._stroke(before or now, now)
            before = now

    def mark(self, x: float, y: float) -> None:
        column, row = self._place(x, y)
        self._marks.add((row // 4, column // 2))

    def rows(self, style: str) -> Iterator[list[Span]]:
        """The rows from the top, in as few spans as there are changes of style."""
        for row, bits in enumerate(self._bits):
            cells = (
                (_MARK, "validation")
                if (row, place) in self._marks
                else (chr(0x2800 + dots), style)
                for place, dots in enumerate(bits)
            )
            yield [
                Span("".join(text for text, _ in group), named)
                for named, group in groupby(cells, key=lambda cell: cell[1])
            ]

    def _place(self, x: float, y: float) -> tuple[int, int]:
        """The column and row of dots, from the left and the top."""
        (first, last), (low, high) = self._xs, self._ys
        columns, rows = 2 * self._cells - 1, 4 * self._rows - 1
        column = (x - first) / (last - first) * columns if last > first else columns
        row = (high - y) / (high - low) * rows
        return round(min(max(column, 0), columns)), round(min(max(row, 0), rows))

    def _stroke(self, begin: tuple[int, int], end: tuple[int, int]) -> None:
        (x, y), (to_x, to_y) = begin, end
        steps = max(abs(to_x - x), abs(to_y - y), 1)
        for step in range(steps + 1):
            column = x + round((to_x - x) * step / steps)
            row = y + round((to_y - y) * step / steps)
            self._bits[row // 4][column // 2] |= _DOTS[row % 4][column % 2]


def sparks(values: Sequence[float], cells: int, top: float) -> str:
    """The last values as one row of blocks; nothing of `top` is blank."""
    levels = [math.ceil(len(_LEVELS) * max(value, 0.0) / top) if top > 0 else 0 for value in values]
    drawn = [" " if not level else _LEVELS[min(level, len(_LEVELS)) - 1] for level in levels]
    return "".join(drawn[-cells:]) if cells > 0 else ""


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

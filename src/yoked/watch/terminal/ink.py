"""Lines of text with styles, as the screen draws and plain output prints them.

Everything is drawn in Unicode first. What a terminal without it shows is one table below, which
keeps each character's width. No style carries a meaning that its text does not carry, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from yoked.text import one_line
from yoked.watch.view import Level


class Span(NamedTuple):
    """A piece of a line. style: of `STYLES`; action: what a click on it does, of the screen's."""

    text: str
    style: str = ""
    action: str = ""


Line = tuple[Span, ...]

# As rich reads them. Colours are the terminal's own sixteen: they suit its background.
STYLES = {
    "": "none",
    "strong": "bold",
    "dim": "dim",
    "chosen": "reverse",
    "found": "reverse",
    "good": "green",
    "warning": "bold yellow",
    "bad": "bold red",
    "computes": "blue",
    "sends": "cyan",
    "waits": "yellow",
    "other": "dim",
    "loss": "cyan",
    "validation": "bold magenta",
    "speed": "blue",
    "key": "bold",
}
# Before what asks for a look; two cells.
MARKS: Mapping[Level, str] = {"plain": "  ", "good": "OK", "warning": "! ", "bad": "!!"}
LEVEL_STYLES: Mapping[Level, str] = {
    "plain": "",
    "good": "good",
    "warning": "warning",
    "bad": "bad",
}


def line(*spans: Span | str | tuple[str, str]) -> Line:
    """A line of spans, or texts with or without a style."""
    return tuple(
        each
        if isinstance(each, Span)
        else Span(each)
        if isinstance(each, str)
        else Span(each[0], each[1])
        for each in spans
    )


def text_of(drawn: Line) -> str:
    """Its text alone, without blanks at the end."""
    return "".join(span.text for span in drawn).rstrip()


def fit(text: str, cells: int) -> str:
    """The text in at most so many cells; one that is cut ends with an ellipsis."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def padded(text: str, cells: int, *, right: bool = False) -> str:
    """The text in exactly so many cells."""
    text = fit(text, cells)
    blanks = " " * (cells - cell_len(text))
    return blanks + text if right else text + blanks


def cut(drawn: Line, cells: int) -> Line:
    """The line in at most so many cells, with nothing that acts on a terminal."""
    spans, room = [], cells
    for span in drawn:
        text = one_line(span.text)
        length = cell_len(text)
        if length > room:
            text, length = fit(text, room), room
        if text:
            spans.append(span._replace(text=text))
        room -= length
    return tuple(spans)


def beside(left: Line, right: Line, half: int) -> Line:
    """Two lines in one: the right one begins after so many cells."""
    left = cut(left, half)
    used = sum(cell_len(span.text) for span in left)
    return (*left, Span(" " * (half - used)), *right)


def wrapped(text: str, cells: int, *, indent: int = 0, most: int = 99) -> list[str]:
    """The text in lines of at most so many cells, all but the first indented; at most so many."""
    width = max(cells, 8)
    lines = textwrap.wrap(
        one_line(text), width, subsequent_indent=" " * min(indent, width // 3)
    ) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], fit(f"{lines[most - 1]} {lines[most].strip()}", width)]
        if not lines[-1].endswith("…"):
            lines[-1] = fit(lines[-1], width - 1) + "…"
    return lines


class Cell(NamedTuple):
    """Of a row of columns."""

    text: str
    style: str = ""
    right: bool = False


def columns(rows: Sequence[Sequence[Cell]], cells: int, most: int = 24) -> list[Line]:
    """Rows with their columns aligned; the last ones are left out where there is no room.

    most: cells of a column, but for the last one.
    """
    if not rows:
        return []
    widths = [max(cell_len(cell.text) for cell in column) for column in zip(*rows, strict=True)]
    widths = [*(min(width, most) for width in widths[:-1]), widths[-1]]
    kept, used = 0, 0
    for width in widths:
        if kept and used + width > cells:
            break
        kept, used = kept + 1, used + width + 2 * bool(width)
    return [
        tuple(
            Span(padded(cell.text, width, right=cell.right) + "  " * bool(width), cell.style)
            for cell, width in zip(row[:kept], widths, strict=False)
        )
        for row in rows
    ]


def _braille_in_ascii(dots: int) -> str:
    """Of a cell of 2 x 4 dots (Unicode's order of bits), what is most like it."""
    rows = [row for row, bits in enumerate((0x09, 0x12, 0x24, 0xC0)) if dots & bits]
    if not rows:
        return " "
    if rows[-1] - rows[0] >= 2:
        return "|"
    return "'" if rows[0] == 0 else "." if rows[-1] == 3 else "-"


_SIMPLE = str.maketrans(
    {
        **dict(zip("█▒░·…→━─│┤└µ↓↑", "#=.-~>#-||`uv^", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇", ".:-=+*%", strict=True)),
        **{chr(0x2800 + dots): _braille_in_ascii(dots) for dots in range(256)},
    }
)


def simple(text: str) -> str:
    """The text in ASCII, in as many cells."""
    text = text.translate(_SIMPLE)
    if text.isascii():
        return text
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in text)


def is_simple(environment: Mapping[str, str]) -> bool:
    """Whether a terminal may have no more than ASCII: by its locale, or as Linux's console has no
    braille.
    """
    if environment.get("TERM") in ("linux", "dumb", "vt100", "vt220"):
        return True
    named = next(filter(None, map(environment.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    # Python itself puts this in the place of LC_CTYPE where the locale is "C" (PEP 538).
    if named == "C.UTF-8" and not environment.get("LC_ALL"):
        named = environment.get("LANG", "")
    return "utf" not in named.lower()


def finished(drawn: Iterable[Line], cells: int, *, in_ascii: bool) -> list[Line]:
    """Lines as they may be shown in so many cells."""
    lines = [cut(each, cells) for each in drawn]
    if in_ascii:
        lines = [tuple(span._replace(text=simple(span.text)) for span in each) for each in lines]
    return lines

"""What a rank wrote, as rows of a pane that can be searched."""

from __future__ import annotations

import re
from collections.abc import Sequence

from yoked.text import Followed, one_line
from yoked.watch.terminal.ink import Line, Span

# Of a rank, from its end: each look reads them again.
LINES = 500
_LEFT = re.compile(r"\x1b\[[0-9;:]*[mK]")
_MARK = {"out": " ", "err": "e"}

Written = Sequence[tuple[str, str]]


def plain_line(text: str) -> str:
    """A line as it stood at last: without colours, and of a line drawn over itself the end."""
    shown = _LEFT.sub("", Followed().feed(text)).rstrip("\r\n")
    return one_line(shown.rpartition("\r")[2].expandtabs(8))


def moved(before: Written, now: Written, place: int) -> int:
    """Where a line of `before` is now: that with the same two lines after it which is nearest."""
    wanted = tuple(before[place : place + 3])
    same = [
        each
        for each in range(len(now))
        if now[each] == wanted[0] and tuple(now[each : each + len(wanted)]) == wanted
    ]
    return min(same, key=lambda each: abs(each - place), default=0)


class LogText:
    """Lines of a rank in so many cells, each in as many rows as it needs."""

    def __init__(self, written: Written, cells: int, term: str = "", at: int | None = None) -> None:
        """term: what is searched for, in either case; at: the place of a line that is marked."""
        room = max(cells - 3, 8)
        self._term = term.lower()
        self.rows: list[Line] = []
        # The places of lines with the term.
        self.found: list[int] = []
        # The row at which each line begins, and where they end.
        self.begins = [0]
        for place, (stream, raw) in enumerate(written):
            text = plain_line(raw)
            if self._term and self._term in text.lower():
                self.found.append(place)
            marks = [_MARK.get(stream, "?") + (">" if place == at else " ") + " "]
            for piece in _pieces(text, room):
                mark = marks.pop() if marks else "   "
                self.rows.append(
                    (Span(mark, "strong" if ">" in mark else "dim"), *self._marked(piece))
                )
            self.begins.append(len(self.rows))

    def _marked(self, piece: str) -> list[Span]:
        """The piece, with the term in reverse wherever it is."""
        if not self._term or self._term not in piece.lower():
            return [Span(piece)]
        parts = re.split(f"({re.escape(self._term)})", piece, flags=re.IGNORECASE)
        return [Span(part, "found" * (place % 2)) for place, part in enumerate(parts) if part]


def _pieces(text: str, cells: int) -> list[str]:
    """The text in pieces of at most so many cells."""
    from rich.cells import chop_cells

    return [text] if len(text) * 2 <= cells else chop_cells(text, cells) or [""]

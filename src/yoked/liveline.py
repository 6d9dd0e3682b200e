"""One line of live progress, as parts: whoever draws it shows those for which there is room.

A rank leaves the line in a file, and terminals of any width draw it, on other machines too. There
it is foreign text.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from yoked.shape import Row, misfit
from yoked.text import one_line

_GAP = "  "
_BAR_CELLS = (8, 30)
# A part of a line is a few words; a rank's file may be anything.
_MOST_PARTS, _LONGEST_PART = 20, 200


@dataclass(frozen=True)
class LivePart:
    """text, or short where there is little room. importance: the lower, the sooner it is left out;
    0 is the first to go.
    """

    text: str
    importance: int
    short: str = ""


@dataclass(frozen=True)
class LiveText:
    """A line. done: of all work, between 0 and 1, for a bar; None: no bar. every_s: as often as it
    is expected to change; one that stays for longer is shown with how long it has stayed.
    since_s: since when it has, by this machine's time.monotonic(); None: whoever draws it sees.
    """

    parts: Sequence[LivePart] = field(default_factory=tuple)
    done: float | None = None
    every_s: float = 0.0
    since_s: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, text: str, *, since_s: float | None = None) -> LiveText:
        """A line of one part."""
        return cls((LivePart(text, 0),), since_s=since_s)

    def encode(self) -> bytes:
        """As a file has it."""
        parts = [[part.text, part.importance, part.short] for part in self.parts]
        return json.dumps([parts, self.done, self.every_s]).encode()

    @classmethod
    def decode(cls, content: bytes) -> LiveText | None:
        """What `encode` wrote; None: it is no such line, or not all of it."""
        try:
            told = json.loads(content)
        except (ValueError, RecursionError):
            return None
        if misfit(told, Row(([Row((str, int, str))], (float, None), float))) is not None:
            return None
        parts = [
            LivePart(text[:_LONGEST_PART], importance, short[:_LONGEST_PART])
            for text, importance, short in told[0][:_MOST_PARTS]
        ]
        # Python's JSON has NaN, of which no bar can be drawn.
        is_known = told[1] is not None and math.isfinite(told[1])
        done = min(max(told[1], 0.0), 1.0) if is_known else None
        return cls(tuple(parts), done, told[2])

    def fit(self, cells: int, *, age_s: float = 0.0, encoding: str = "utf-8") -> str:
        """The line in so many cells of a terminal at most, with nothing that acts on it.

        age_s: since the line has not changed.
        """
        parts = [
            LivePart(one_line(part.text), part.importance, one_line(part.short))
            for part in self.parts
        ]
        if age_s > max(2.0, 2 * self.every_s):
            parts.append(LivePart(_age(age_s), max(part.importance for part in parts)))
        texts = _chosen(parts, cells)
        line = _GAP.join(texts)
        room = cells - _cells(line) - len(_GAP)
        if self.done is not None and room >= _BAR_CELLS[0]:
            line = f"{_bar(self.done, min(room, _BAR_CELLS[1]))}{_GAP}{line}"
        return _in(encoding, _cut(line, cells))


def _age(age_s: float) -> str:
    minutes, seconds = divmod(int(age_s), 60)
    return f"({minutes} min {seconds:02d} s)" if minutes else f"({seconds} s)"


def _chosen(parts: Sequence[LivePart], cells: int) -> list[str]:
    """The texts for which there is room, in their order."""
    for texts in ([part.text for part in parts], [part.short or part.text for part in parts]):
        if _cells(_GAP.join(texts)) <= cells:
            return texts
    kept: set[int] = set()
    by_importance = sorted(range(len(parts)), key=lambda place: -parts[place].importance)
    for place in by_importance:
        trial = sorted({*kept, place})
        if not kept or _cells(_GAP.join(texts[each] for each in trial)) <= cells:
            kept.add(place)
    return [texts[place] for place in sorted(kept)]


def _bar(done: float, cells: int) -> str:
    full = int(done * cells)
    return "━" * full + "─" * (cells - full)


def _cells(text: str) -> int:
    """Columns of a terminal: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def _cut(line: str, cells: int) -> str:
    if _cells(line) <= cells:
        return line
    while line and _cells(line) > cells - 1:
        line = line[:-1]
    return line + "…"


def _in(encoding: str, line: str) -> str:
    """The line in what a terminal's encoding has."""
    try:
        line.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        for fancy, simple in {"━": "#", "─": "-", "…": ".", "↓": "v", "↑": "^", "→": "="}.items():
            line = line.replace(fancy, simple)
        return line.encode("ascii", "replace").decode()
    return line

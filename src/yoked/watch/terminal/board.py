"""The whole screen of a run: which part gets how many rows, and the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from yoked.errors import YokedError
from yoked.units import format_duration
from yoked.watch.terminal.curves import ZOOMS, curves, curves_of
from yoked.watch.terminal.ink import Line, Span, beside, line, wrapped
from yoked.watch.terminal.ranks import ranks
from yoked.watch.terminal.rows import (
    clock,
    cost,
    events,
    header,
    links,
    verdict,
)
from yoked.watch.view import View

# Older than that, a view's age is told.
STALE_S = 15.0
# From so many cells on, links and events stand side by side.
_WIDE = 120

# The first ones are there on the narrowest screen.
KEYS = (
    ("q", "quit", "app.leave"),
    ("?", "help", "app.help"),
    ("r", "runs", "screen.runs"),
    ("l", "log", "screen.open_log"),
    ("s", "save", "screen.save"),
    ("x", "stop", "screen.stop"),
    ("z", "zoom", "screen.zoom"),
    ("a", "all", "screen.all"),
)

# In which order parts get rows, up to how many; the first ones are there on the smallest screen.
_ORDER = (
    ("trouble", 3),
    ("header", 1),
    ("verdict", 1),
    ("keys", 1),
    ("ranks", 4),
    ("notice", 2),
    ("status", 1),
    ("curves", 5),
    ("events", 2),
    ("links", 2),
    ("verdict", 2),
    ("ranks", 9),
    ("verdict", 4),
    ("curves", 6),
    ("events", 3),
    ("links", 3),
    ("verdict", 5),
    ("notice", 4),
    ("events", 4),
    ("curves", 9),
    ("gaps", 9),
    ("verdict", 99),
    ("ranks", 17),
    ("links", 7),
    ("curves", 14),
    ("events", 9),
    ("links", 13),
    ("ranks", 10**6),
    ("curves", 18),
    ("events", 10**6),
    ("links", 10**6),
    ("curves", 40),
)
_LEAST = {"ranks": 2, "curves": 5, "links": 2, "events": 2}


@dataclass(frozen=True)
class Shown:
    """What is on the screen beside the view. selected: the place of a rank; zoom: of
    `ZOOMS`; trouble: why the last look failed; notice: what became of the last wish, in words.
    """

    now_s: float
    selected: int = 0
    zoom: int = 0
    trouble: YokedError | None = None
    notice: str = ""


def board(view: View, shown: Shown, width: int, height: int) -> list[Line]:
    """A view as exactly so many lines."""
    endless, zoom = 10**6, ZOOMS[shown.zoom]
    age_s = max(0.0, shown.now_s - view.time_s)
    trouble = trouble_lines(shown.trouble, width, age_s=age_s) if shown.trouble else []
    notice = [line(("  > ", "strong"), text) for text in _notice(shown.notice, width)]
    wide = width >= _WIDE
    below = width // 2 - 1 if wide else width
    rank_rows = len(view.ranks) + 1 if view.ranks else 0
    event_rows = len(events(view, below, endless))
    link_rows = len(view.links) + 1 if view.links else 0
    wants = {
        "trouble": len(trouble),
        "header": 1,
        "verdict": len(verdict(view, width, endless)),
        "notice": len(notice),
        "ranks": rank_rows,
        "curves": endless if curves_of(view, zoom) else 0,
        "links": link_rows,
        "events": event_rows,
        "status": 1,
        "keys": 1,
    }
    if wide:
        wants["events"], wants["links"] = max(event_rows, link_rows), 0
    wants["gaps"] = sum(bool(wants[name]) for name in ("ranks", "curves", "events", "links"))
    given = shares_of(height, wants)
    blocks = [
        trouble[: given["trouble"]],
        [header(view, width)][: given["header"]],
        verdict(view, width, given["verdict"])[: given["verdict"]],
        notice[: given["notice"]],
        ranks(view, width, rows=given["ranks"], selected=shown.selected),
        curves(view, width, given["curves"], zoom),
    ]
    if wide:
        blocks.append(_pair(view, width, given["events"]))
    else:
        blocks += [links(view, width, given["links"]), events(view, width, given["events"])]
    if shown.trouble is not None:
        blocks = [blocks[0], *(_dimmed(block) for block in blocks[1:])]
    drawn = _with_gaps(blocks, given["gaps"])
    foot = [status(view, shown, width, age_s)][: given["status"]]
    foot += [keys(KEYS, width)][: given["keys"]]
    room = height - len(foot)
    return [*drawn[:room], *([()] * (room - len(drawn))), *foot]


def shares_of(height: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Rows for each part: in the order of `_ORDER`, as long as there are any."""
    given, room = dict.fromkeys(wants, 0), height
    for name, upto in _ORDER:
        more = min(min(upto, wants[name]) - given[name], room)
        if more > 0 and given[name] + more >= _LEAST.get(name, 1):
            given[name] += more
            room -= more
    return given


def _pair(view: View, width: int, rows: int) -> list[Line]:
    """Links on the left, events on the right."""
    half = width // 2
    left, right = links(view, half - 1, rows), events(view, half - 1, rows)
    if not left or not right:
        return links(view, width, rows) or events(view, width, rows)
    length = max(len(left), len(right))
    left, right = ([*each, *([()] * (length - len(each)))] for each in (left, right))
    return [beside(one, other, half) for one, other in zip(left, right, strict=True)]


def _with_gaps(blocks: Sequence[list[Line]], gaps: int) -> list[Line]:
    """The blocks, one below the other, with so many empty lines, between the last ones first."""
    there = [block for block in blocks if block]
    drawn: list[Line] = []
    for place, block in enumerate(there):
        # Header, verdict and the like belong together.
        if place and len(there) - place <= gaps:
            drawn.append(())
        drawn += block
    return drawn


def _dimmed(block: Sequence[Line]) -> list[Line]:
    return [tuple(span._replace(style="dim") for span in each) for each in block]


def trouble_lines(problem: YokedError, width: int, *, age_s: float | None) -> list[Line]:
    """Why nothing newer is seen, and what helps. age_s: of what is shown all the same."""
    old = "" if age_s is None else f" What follows was seen {format_duration(age_s)} ago."
    lines = [
        line((" !!   " if not place else "      ", "bad"), (text, "bad"))
        for place, text in enumerate(wrapped(f"{problem.what}.{old}", width - 7, most=2))
    ]
    return [*lines, *(line(("      fix: ", "dim"), fix) for fix in problem.fix[:1])]


def _notice(notice: str, width: int) -> list[str]:
    return [
        text
        for each in filter(None, notice.split("\n"))
        for text in wrapped(each, width - 5, most=2)
    ]


def status(view: View, shown: Shown, width: int, age_s: float) -> Line:
    """What looking on costs, and when it was looked."""
    seen = f"seen {clock(view.time_s, shown.now_s)}"
    if age_s > STALE_S:
        seen = f"! seen {format_duration(age_s)} ago"
    if view.sampled:
        seen = f"curve of a sample, {seen}"
    told = f" {cost(view)}"
    room = width - cell_len(seen) - 1
    if cell_len(told) > room:
        told = told.replace("looking on takes ", "costs ")
    if cell_len(told) > room:
        told = told.partition(" (")[0]
    blanks = max(1, room - cell_len(told))
    return line((told, "dim"), " " * blanks, (seen, "warning" if age_s > STALE_S else "dim"))


def keys(named: Sequence[tuple[str, str, str]], width: int) -> Line:
    """The keys and what they do; a click does the same. Those without room are left out."""
    spans: list[Span] = []
    room = width
    for key, does, action in named:
        length = len(key) + len(does) + 3
        if length > room:
            break
        spans += [Span(f" {key}", "key", action), Span(f" {does} ", "dim", action)]
        room -= length
    return tuple(spans)

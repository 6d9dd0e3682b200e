"""The first chart: where the time of each rank goes, and for whom it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from yoked.text import one_line
from yoked.units import format_bytes, format_duration, listed
from yoked.watch.terminal.charts import sparks
from yoked.watch.terminal.ink import LEVEL_STYLES, MARKS, Line, Span, padded
from yoked.watch.view import NOW_STEPS, PARTS, RankNow, View

GLYPHS = {"computes": "█", "sends": "▒", "waits": "░", "other": "·"}
_MOST_NAME = 16


def ranks(
    view: View, width: int, *, rows: int, selected: int | None, bars: bool = True
) -> list[Line]:
    """A heading, and a row for each rank: those around the selected one, where not all fit.

    selected: its place; None: there is no cursor. bars: False: only words and figures.
    """
    if not view.ranks or rows < 2:
        return []
    shown, begins = rows - 1, 0
    if shown < len(view.ranks):
        begins = min(max((selected or 0) - shown // 2, 0), len(view.ranks) - shown)
    window = range(begins, min(begins + shown, len(view.ranks)))
    plan = _RankPlan(view, width, bars=bars)
    lines = [plan.heading(window)]
    for place in window:
        row = plan.row(view.ranks[place], is_selected=place == selected)
        lines.append(tuple(span._replace(action=f"screen.open_log({place})") for span in row))
    return lines


class _RankPlan:
    """The widths of the columns of ranks, fit for all of them."""

    def __init__(self, view: View, width: int, *, bars: bool) -> None:
        self._view = view
        self._number = max(len(str(each.rank)) for each in view.ranks)
        names = max(cell_len(one_line(each.host)) for each in view.ranks)
        self._host = min(max(names, 4), _MOST_NAME, max(4, width // 6))
        # Of a rank that stands, earlier steps do not say how long others wait for it.
        stands = any(each.level == "bad" for each in view.ranks)
        wait_s = () if stands else view.recent.wait_s
        self._tails = {each.rank: _tail(each, wait_s) for each in view.ranks}
        steps = min(len(view.recent.step), NOW_STEPS)
        self._span = f"last {steps} steps" if steps else "last steps"
        if not view.progress.step:
            self._span = "last 20 s"
        if not any(each.parts for each in view.ranks):
            self._span = ""
        memory = max((len(_memory(each)) for each in view.ranks), default=0)
        self._memory = max(memory, 6) if memory and width >= 60 else 0
        self._shares = 15 if width >= 56 else 0
        fixed = 5 + self._number + self._host + self._shares + self._memory + 4
        room = width - fixed
        wanted = max((cell_len(tail) for tail in self._tails.values()), default=0)
        self._tail = min(max(wanted, cell_len(self._span)), max(room * 3 // 5, 0))
        room -= self._tail
        self._sparks = (
            min(room // 3, 40) if width >= 110 and bars and any(view.recent.wait_s) else 0
        )
        room -= self._sparks + 2 * bool(self._sparks)
        self._bar = min(max(room, 0), 60) if bars else 0
        if not bars:
            self._tail = min(wanted or cell_len(self._span), max(width - fixed, 0))
        seen = [wait_s for each in view.recent.wait_s for wait_s in each[-self._sparks :]]
        self._top_s = max(seen, default=0.0) if self._sparks else 0.0

    def heading(self, window: range) -> Line:
        every = self._view.ranks
        name = "rank" if len(window) == len(every) else f"{window[0]}-{window[-1]}/{len(every)}"
        begins = padded(f" {name}", 5 + self._number + self._host)
        spans = [Span(begins, "strong")]
        if self._bar:
            spans += self._legend()
        if self._shares:
            spans.append(Span(" comp send wait", "dim"))
        if self._sparks:
            top = f"waits, up to {format_duration(self._top_s)}"
            spans.append(Span("  " + padded(top, self._sparks), "dim"))
        spans.append(Span(" " + padded(self._span, self._tail), "dim"))
        if self._memory:
            spans.append(Span("  " + padded("memory", self._memory, right=True), "dim"))
        return tuple(spans)

    def _legend(self) -> list[Span]:
        """The bar's pieces by name, as far as there is room: all of them, or all in short."""
        for names in (
            ("computes", "sends", "waits", "other"),
            ("comp", "send", "wait", "other"),
            ("comp", "send", "wait"),
        ):
            words = dict(zip(GLYPHS, names, strict=False))
            length = sum(len(word) + 2 for word in words.values()) - 1
            if length <= self._bar:
                spans = [
                    Span(text, style)
                    for part, word in words.items()
                    for text, style in ((GLYPHS[part], part), (f"{word} ", "dim"))
                ]
                return [*spans, Span(" " * (self._bar - length - 1))]
        return [Span(" " * self._bar)]

    def row(self, now: RankNow, *, is_selected: bool) -> Line:
        style = LEVEL_STYLES[now.level]
        number = padded(str(now.rank), self._number, right=True)
        host = padded(one_line(now.host), self._host)
        spans = [
            Span(">" if is_selected else " ", "strong"),
            Span(MARKS[now.level], style),
            Span(f"{number} {host} ", "strong" if is_selected else ""),
            *_bar(now.parts, self._bar),
        ]
        if self._shares:
            shares = "".join(
                f" {now.parts[part]:4.0%}" if part in now.parts else "    -" for part in PARTS
            )
            spans.append(Span(shares))
        if self._sparks:
            waits = self._view.recent.wait_s
            known = waits[now.rank] if now.rank < len(waits) else ()
            drawn = padded(sparks(known, self._sparks, self._top_s), self._sparks)
            spans.append(Span("  " + drawn, "waits"))
        spans.append(Span(" " + padded(self._tails[now.rank], self._tail), style))
        if self._memory:
            # Two cells: a rank's number and the bytes behind it are not read as one number.
            spans.append(Span("  " + padded(_memory(now), self._memory, right=True)))
        return tuple(spans)


def _tail(now: RankNow, wait_s: Sequence[Sequence[float]]) -> str:
    """What a rank does beside training, how long it waits in a step, and for whom."""
    known = wait_s[now.rank] if now.rank < len(wait_s) else ()
    word = "rank" if len(now.waits_for) == 1 else "ranks"
    waits = [f"for {word} {listed(map(str, now.waits_for))}"] if now.waits_for else []
    if known and not now.doing:
        last = known[-NOW_STEPS:]
        waits.insert(0, format_duration(sum(last) / len(last)))
    said = [one_line(now.doing)] if now.doing else []
    return ", ".join([*said, *([" ".join(["waits", *waits])] if waits else [])])


def _memory(now: RankNow) -> str:
    return "" if now.memory_bytes is None else format_bytes(now.memory_bytes)


def _bar(parts: Mapping[str, float], cells: int) -> list[Span]:
    """The parts side by side. What is left is `other`, if all are known."""
    shares = {part: min(max(parts.get(part, 0.0), 0.0), 1.0) for part in PARTS}
    if all(part in parts for part in PARTS):
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    spans, share, drawn = [], 0.0, 0
    for part, each in shares.items():
        share += each
        upto = min(round(share * cells), cells)
        if upto > drawn:
            spans.append(Span(GLYPHS[part] * (upto - drawn), part))
        drawn = max(upto, drawn)
    return [*spans, Span(" " * (cells - drawn))]

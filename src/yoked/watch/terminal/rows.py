"""What a view says, part by part, as lines: the same for the screen and for plain output."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rich.cells import cell_len

from yoked.liveline import LivePart, LiveText
from yoked.text import one_line
from yoked.units import (
    format_bit_per_s,
    format_bytes,
    format_bytes_per_s,
    format_count,
    format_duration,
    listed,
)
from yoked.watch.terminal.charts import Curve, draw, sparks
from yoked.watch.terminal.ink import (
    LEVEL_STYLES,
    MARKS,
    Cell,
    Line,
    Span,
    columns,
    cut,
    fit,
    line,
    padded,
    wrapped,
)
from yoked.watch.view import PARTS, Level, LinkNow, RankNow, RunRow, View

GLYPHS = {"computes": "█", "sends": "▒", "waits": "░", "other": "·"}
STATE_LEVELS: Mapping[str, Level] = {
    "running": "good",
    "finished": "good",
    "failed": "bad",
    "lost": "bad",
    "interrupted": "warning",
}
# Packets sent again, above which a link loses time by it.
_RESENT = 0.001
_MOST_NAME = 16
# Of which a rank's parts are, at most.
_NOW_STEPS = 20


def header(view: View, width: int, *, bars: bool = True) -> Line:
    """The run, its state, and how far it is."""
    name, state = fit(one_line(view.run), max(8, width // 3)), one_line(view.state)
    room = width - cell_len(name) - cell_len(state) - 5
    progress = _progress(view)
    if not bars:
        progress = replace(progress, done=None)
    told = progress.fit(room) if room > 4 else ""
    return line(
        " ",
        (name, "strong"),
        "  ",
        (state, LEVEL_STYLES[STATE_LEVELS.get(view.state, "plain")]),
        "  ",
        told,
    )


def _progress(view: View) -> LiveText:
    now, parts, done = view.progress, [], None
    if now.stage and view.active and now.stage != view.verdict.text:
        parts.append(LivePart(now.stage, 6))
    if now.steps:
        counter = f"{now.step:,}/{now.steps:,}"
        parts.append(LivePart(f"step {counter}", 9, counter))
        done = min(max(now.step / now.steps, 0.0), 1.0)
    elif now.step:
        parts.append(LivePart(f"step {now.step:,}", 9))
    if now.tokens_per_s is not None:
        short = f"{format_count(round(now.tokens_per_s))} tokens/s"
        parts.append(LivePart(f"{now.tokens_per_s:,.0f} tokens/s", 7, short))
    if now.loss is not None:
        parts.append(LivePart(f"loss {now.loss:.4f}", 8, f"loss {now.loss:.3f}"))
    if now.left_s is not None and view.active:
        parts.append(LivePart(f"{format_duration(now.left_s)} left", 5))
    return LiveText(tuple(parts), done)


def verdict(view: View, width: int, rows: int) -> list[Line]:
    """Verdict, evidence, next command; as much of it as so many rows have room for."""
    told = view.verdict
    style = LEVEL_STYLES[told.level]
    others = bool(told.why or told.next or view.silent)
    text = wrapped(told.text, width - 7, most=max(1, min(2, rows - others)) if rows < 99 else 99)
    lines = _marked(MARKS[told.level], text, style, style or "strong")
    room = rows - len(lines)
    # What to do comes first where there is little room, then why, then who is silent.
    wanted = [("next", told.next), *_reasons(view)]
    parts: dict[str, list[Line]] = {}
    for least in (True, False):
        for mark, texts in wanted:
            used = sum(map(len, parts.values())) - len(parts.get(mark, ()))
            most = 1 if least else 3 * len(texts)
            parts[mark] = _listed(mark, texts, width - 7, min(most, room - used))
    return [*lines, *parts["! "], *parts["why"], *parts["next"]]


def reasons(view: View, width: int) -> list[Line]:
    """Who does not answer, and the evidence of the verdict."""
    found = reversed(_reasons(view))
    return [
        each for mark, texts in found for each in _listed(mark, texts, width - 7, 3 * len(texts))
    ]


def _reasons(view: View) -> list[tuple[str, Sequence[str]]]:
    """Texts behind their marks, the most important first."""
    silent = [f"{host}: {why}" for host, why in view.silent.items()]
    return [("why", view.verdict.why), ("! ", silent)]


def _listed(mark: str, texts: Sequence[str], cells: int, rows: int) -> list[Line]:
    """Texts behind their mark, in at most so many rows."""
    lines: list[Line] = []
    for place, text in enumerate(texts):
        room = rows - len(lines)
        if room > 0:
            lines += _marked(mark if not place else "", wrapped(text, cells, most=min(room, 3)))
    return lines


def _marked(
    mark: str, texts: Sequence[str], mark_style: str = "dim", style: str = ""
) -> list[Line]:
    return [
        line(" ", (padded("" if place else mark, 5), mark_style), (text, style))
        for place, text in enumerate(texts)
    ]


# --- ranks


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
        steps = min(len(view.recent.step), _NOW_STEPS)
        self._span = f"last {steps} steps" if steps else "last steps"
        if not view.progress.step:
            self._span = "last 20 s"
        if not any(each.parts for each in view.ranks):
            self._span = ""
        memory = max((len(_memory(each)) for each in view.ranks), default=0)
        self._memory = max(memory, 6) if memory and width >= 60 else 0
        self._shares = 15 if width >= 56 else 0
        fixed = 5 + self._number + self._host + self._shares + self._memory + 3
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
            spans.append(Span(" " + padded("memory", self._memory, right=True), "dim"))
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
            spans.append(Span(" " + padded(_memory(now), self._memory, right=True)))
        return tuple(spans)


def _tail(now: RankNow, wait_s: Sequence[Sequence[float]]) -> str:
    """What a rank does beside training, how long it waits in a step, and for whom."""
    known = wait_s[now.rank] if now.rank < len(wait_s) else ()
    waits = [f"for {listed(map(str, now.waits_for))}"] if now.waits_for else []
    if known and not now.doing:
        last = known[-_NOW_STEPS:]
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


# --- curves


def curves(view: View, width: int, rows: int, *, recent: bool) -> list[Line]:
    """Loss and speed by step: side by side, or the first that is known where there is little room.

    recent: of the last steps alone.
    """
    known = (_loss(view, recent=recent), _speed(view, recent=recent))
    drawn = [each for each in known if each.is_drawn]
    if not drawn or rows < 3:
        return []
    if width < 64 or len(drawn) == 1:
        return draw(drawn[0], width - 1, rows)
    half = (width - 1) // 2
    left, right = (draw(each, half - 1, rows) for each in drawn)
    return [beside(one, other, half) for one, other in zip(left, right, strict=True)]


def beside(left: Line, right: Line, half: int) -> Line:
    """Two lines in one: the right one begins after so many cells."""
    left = cut(left, half)
    used = sum(cell_len(span.text) for span in left)
    return (*left, Span(" " * (half - used)), *right)


def curve_of(view: View) -> Mapping[str, Any]:
    """The columns of a run's curve; empty: it has none."""
    curve = view.figures.get("curve")
    return curve if isinstance(curve, Mapping) else {}


def _loss(view: View, *, recent: bool) -> Curve:
    last = view.recent
    steps: Sequence[float] = last.step if recent else curve_of(view).get("step", ())
    values: Sequence[float | None] = last.loss if recent else curve_of(view).get("loss", ())
    title: list[Span | str | tuple[str, str]] = [(" loss ", "strong")]
    if view.progress.loss is not None:
        title.append(f"{view.progress.loss:.4f} ")
    title.append(("nats" + ", last steps" * recent, "dim"))
    pairs = [(x, y) for x, y in zip(steps, values, strict=False) if y is not None]
    points, scale = _validation(view, pairs) if pairs else ([], 1.0)
    if points:
        title += [("  o ", "validation"), (f"val {points[-1][1]:.4f} bpb", "dim")]
    return Curve(title, steps, values, "loss", marks=points, mark_scale=scale)


def _validation(
    view: View, losses: Sequence[tuple[float, float]]
) -> tuple[list[tuple[float, float]], float]:
    """Evaluations in bits per byte, and how much of that is one nat of the loss beside them.

    Both units measure the same on the same text; so the mean of their ratio puts the points beside
    the curve, and shows where they leave it.
    """
    steps = [step for step, _ in losses]
    points = [
        (each["step"], each["val_bpb"])
        for each in view.figures.get("evaluations", ())
        if steps[0] <= each["step"] <= steps[-1] and each["val_bpb"] > 0
    ]
    ratios = [
        value / loss
        for step, value in points
        if (loss := losses[min(bisect_left(steps, step), len(losses) - 1)][1]) > 0
    ]
    return (points, sum(ratios) / len(ratios)) if ratios else ([], 1.0)


def _speed(view: View, *, recent: bool) -> Curve:
    last = view.recent
    if recent:
        steps: Sequence[float] = last.step
        values: Sequence[float | None] = [
            tokens / dt_s if dt_s > 0 else None
            for tokens, dt_s in zip(last.tokens, last.dt_s, strict=False)
        ]
    else:
        steps, values = curve_of(view).get("step", ()), curve_of(view).get("tokens_per_s", ())
    title: list[Span | str | tuple[str, str]] = [(" speed ", "strong")]
    if view.progress.tokens_per_s is not None:
        title.append(f"{view.progress.tokens_per_s:,.0f} ")
    title.append(("tokens/s" + ", last steps" * recent, "dim"))
    return Curve(title, steps, values, "speed", from_zero=True)


# --- links, events, cost


def links(view: View, width: int, rows: int, *, bars: bool = True) -> list[Line]:
    """A heading, and a row for each link; where not all fit, those that are used most."""
    if not view.links or rows < 2:
        return []
    shown = view.links
    if rows - 1 < len(shown):
        most = sorted(shown, key=lambda each: (each.resent > _RESENT, _use(each)), reverse=True)
        kept = most[: rows - 1]
        shown = tuple(each for each in shown if each in kept)
    heading = "links" if len(shown) == len(view.links) else f"links {len(shown)}/{len(view.links)}"
    cells = [
        [
            Cell(f"{fit(one_line(each.sender), 12)} → {fit(one_line(each.receiver), 12)}"),
            *([Cell(_use_bar(each, 10), "sends")] if bars and width >= 70 else []),
            Cell(_used(each), "", right=True),
            Cell(format_bit_per_s(each.bits_per_s), "", right=True),
            Cell(f"of {format_bit_per_s(each.wire_bits_per_s)}" if each.wire_bits_per_s else ""),
            Cell(
                f"! {each.resent:.1%} resent" if each.resent > _RESENT else "",
                LEVEL_STYLES["warning"],
            ),
            Cell("" if each.rtt_s is None else f"rtt {format_duration(each.rtt_s)}"),
        ]
        for each in shown
    ]
    body = [line("   ", *row) for row in columns(cells, width - 3, most=27)]
    return [line((f" {heading}  ", "strong"), ("use of the wire", "dim")), *body]


def _use(link: LinkNow) -> float:
    """Share of the wire; where that was not measured, below all that was."""
    return (
        link.bits_per_s / link.wire_bits_per_s
        if link.wire_bits_per_s
        else -1 / (1 + link.bits_per_s)
    )


def _used(link: LinkNow) -> str:
    return f"{link.bits_per_s / link.wire_bits_per_s:.0%}" if link.wire_bits_per_s else ""


def _use_bar(link: LinkNow, cells: int) -> str:
    if not link.wire_bits_per_s:
        return " " * cells
    used = min(max(round(link.bits_per_s / link.wire_bits_per_s * cells), 0), cells)
    return "▒" * used + "·" * (cells - used)


def events(view: View, width: int, rows: int, *, fixes: bool = False) -> list[Line]:
    """A heading, and the latest events, the newest last. fixes: with what to do, in full."""
    every = view.figures.get("events", ())
    if not every or rows < 2:
        return []
    shown = every[-(rows - 1) :]
    heading = "events" if len(shown) == len(every) else f"events, the last {len(shown)}"
    lines = [line((f" {heading}", "strong"))]
    for each in shown:
        level: Level = each["level"] if each["level"] in MARKS else "plain"
        when, step = clock(each["time_s"], view.time_s), each.get("step")
        begins = f"{when}  {'' if step is None else f'step {step:,}: '}"
        texts = [f"{begins}{each['text']}"]
        if fixes:
            texts = wrapped(texts[0], width - 4, indent=cell_len(when) + 2)
            texts += [f"{' ' * cell_len(when)}  fix: {fix}" for fix in each["fix"]]
        for place, text in enumerate(texts):
            mark = MARKS[level] if not place else "  "
            shown = text if fixes else fit(one_line(text), max(width - 4, 1))
            lines.append(line(" ", (mark, LEVEL_STYLES[level]), " ", shown))
    return lines


def clock(time_s: float, now_s: float) -> str:
    """The local time, with its date where that is not the day of `now_s`."""
    then, now = (datetime.fromtimestamp(each).astimezone() for each in (time_s, now_s))
    return f"{then:%H:%M:%S}" if then.date() == now.date() else f"{then:%b %d %H:%M}"


def cost(view: View) -> str:
    """What looking on takes of the way to the hosts, in words."""
    if view.cost is None:
        return "looking on asks nothing of a host"
    return (
        f"looking on takes {format_bytes_per_s(view.cost.bytes_per_s)} "
        f"(at most {format_bytes_per_s(view.cost.most_bytes_per_s)}; "
        f"{format_bytes(view.cost.opened_bytes)} to open)"
    )


# --- the list of runs


def runs(
    rows: Sequence[RunRow], width: int, *, now_s: float, selected: int | None = None
) -> list[Line]:
    """A heading, and a row for each run."""
    heads = ("run", "state", "hosts", "step", "loss", "when")
    cells = [
        [Cell(head, "dim", right=head in ("step", "loss")) for head in heads],
        *(
            [
                Cell(one_line(each.run), "strong" if place == selected else ""),
                Cell(one_line(each.state), LEVEL_STYLES[STATE_LEVELS.get(each.state, "plain")]),
                Cell(one_line(", ".join(each.hosts))),
                Cell("" if each.step is None else f"{each.step:,}", right=True),
                Cell("" if each.loss is None else f"{each.loss:.4f}", right=True),
                Cell("" if each.when_s is None else clock(each.when_s, now_s)),
            ]
            for place, each in enumerate(rows)
        ),
    ]
    body = columns(cells, width - 2)
    lines: list[Line] = [line("  ", *body[0])]
    for place, row in enumerate(body[1:]):
        mark = Span("> " if place == selected else "  ", "strong")
        lines.append(tuple(span._replace(action=f"screen.pick({place})") for span in (mark, *row)))
    return lines

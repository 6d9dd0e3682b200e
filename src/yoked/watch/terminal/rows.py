"""What a view says, part by part, as lines: the same for the screen and for plain output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rich.cells import cell_len

from yoked.liveline import LivePart, LiveText
from yoked.text import one_line
from yoked.units import (
    format_bit_per_s,
    format_bytes,
    format_bytes_per_s,
    format_count,
    format_duration,
)
from yoked.watch.terminal.ink import (
    LEVEL_STYLES,
    MARKS,
    Cell,
    Line,
    Span,
    columns,
    fit,
    line,
    padded,
    wrapped,
)
from yoked.watch.view import Level, LinkNow, RunRow, View

STATE_LEVELS: Mapping[str, Level] = {
    "running": "good",
    "finished": "good",
    "failed": "bad",
    "lost": "bad",
    "interrupted": "warning",
}
# Packets sent again, above which a link loses time by it.
_RESENT = 0.001


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
    if now.stage and view.active and now.stage not in view.verdict.text:
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
    of_each = 3 if rows < 99 else 99
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
            most = 1 if least else of_each * len(texts)
            parts[mark] = _listed(mark, texts, width - 7, min(most, room - used), of_each)
    return [*lines, *parts["! "], *parts["why"], *parts["next"]]


def reasons(view: View, width: int) -> list[Line]:
    """Who does not answer, and the evidence of the verdict, in full."""
    found = reversed(_reasons(view))
    return [
        each
        for mark, texts in found
        for each in _listed(mark, texts, width - 7, 99 * len(texts), 99)
    ]


def _reasons(view: View) -> list[tuple[str, Sequence[str]]]:
    """Texts behind their marks, the most important first."""
    silent = [f"{host}: {why}" for host, why in view.silent.items()]
    return [("why", view.verdict.why), ("! ", silent)]


def _listed(mark: str, texts: Sequence[str], cells: int, rows: int, of_each: int) -> list[Line]:
    """Texts behind their mark, in at most so many rows, and so many rows of each."""
    lines: list[Line] = []
    for place, text in enumerate(texts):
        room = rows - len(lines)
        if room > 0:
            lines += _marked(
                mark if not place else "", wrapped(text, cells, most=min(room, of_each))
            )
    return lines


def _marked(
    mark: str, texts: Sequence[str], mark_style: str = "dim", style: str = ""
) -> list[Line]:
    return [
        line(" ", (padded("" if place else mark, 5), mark_style), (text, style))
        for place, text in enumerate(texts)
    ]


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
            Cell(
                f"! {each.resent:.1%} resent" if each.resent > _RESENT else "",
                LEVEL_STYLES["warning"],
            ),
            Cell(format_bit_per_s(each.bits_per_s), "", right=True),
            Cell(f"of {format_bit_per_s(each.wire_bits_per_s)}" if each.wire_bits_per_s else ""),
            Cell("" if each.rtt_s is None else f"rtt {format_duration(each.rtt_s)}"),
        ]
        for each in shown
    ]
    body = [line("   ", *row) for row in columns(cells, width - 3, most=27)]
    return [line((f" {heading}  ", "strong"), ("use of the wire", "dim")), *body]


def _share(link: LinkNow) -> float | None:
    """Of the wire; None: that was not measured."""
    return link.bits_per_s / link.wire_bits_per_s if link.wire_bits_per_s else None


def _use(link: LinkNow) -> float:
    """The share, to sort by: without one, below all that have one."""
    share = _share(link)
    return -1 / (1 + link.bits_per_s) if share is None else share


def _used(link: LinkNow) -> str:
    share = _share(link)
    return "" if share is None else f"{share:.0%}"


def _use_bar(link: LinkNow, cells: int) -> str:
    share = _share(link)
    if share is None:
        return " " * cells
    used = min(max(round(share * cells), 0), cells)
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
            indent = cell_len(when) + 2
            texts = wrapped(texts[0], width - 4, indent=indent)
            for fix in each["fix"]:
                rest = wrapped(f"fix: {fix}", width - 4 - indent, indent=5)
                texts += [f"{' ' * indent}{text}" for text in rest]
        for place, text in enumerate(texts):
            mark = MARKS[level] if not place else "  "
            told = text if fixes else fit(one_line(text), max(width - 4, 1))
            lines.append(line(" ", (mark, LEVEL_STYLES[level]), " ", told))
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

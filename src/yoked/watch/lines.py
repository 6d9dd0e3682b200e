"""A view as plain text: for a screen reader, a pipe, a log, and in full on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from yoked.watch.terminal.curves import curve_of
from yoked.watch.terminal.ink import Line, finished, line, text_of, wrapped
from yoked.watch.terminal.ranks import ranks
from yoked.watch.terminal.rows import (
    clock,
    cost,
    events,
    header,
    links,
    reasons,
    verdict,
)
from yoked.watch.view import View

_ENDLESS = 10**6


def lines(view: View, width: int, *, in_ascii: bool = False) -> list[str]:
    """The evidence of a view, in words and figures: all but its verdict's sentence and its next
    commands. width: cells of a line at most. in_ascii: for a locale without Unicode.
    """
    # On the screen, each begins with a blank.
    cells = max(width, 20) + 1
    drawn = [header(view, cells, bars=False), *reasons(view, cells), *_parts(view, cells)]
    return [text_of(each)[1:] for each in finished(drawn, cells, in_ascii=in_ascii)]


def full(view: View, width: int) -> Iterator[Line]:
    """All that a view says, without curves, line by line."""
    yield header(view, width, bars=False)
    yield from verdict(view, width, _ENDLESS)
    yield from _parts(view, width)


def _parts(view: View, width: int) -> Iterator[Line]:
    yield from _block(ranks(view, width, rows=_ENDLESS, selected=None, bars=False))
    yield from _block(_sentences(_curve_words(view), width))
    yield from _block(links(view, width, _ENDLESS, bars=False))
    yield from _block(events(view, width, _ENDLESS, fixes=True))
    yield from _block(_sentences([cost(view)], width))
    yield line(f" seen at {clock(view.time_s, view.time_s)}")


def _block(block: list[Line]) -> Iterator[Line]:
    """With an empty line before it, if there is any."""
    if block:
        yield ()
        yield from block


def _sentences(texts: Iterable[str], width: int) -> list[Line]:
    """Each in as many lines as it needs."""
    return [line(f" {row}") for text in texts for row in wrapped(text, width - 1, indent=2)]


def _curve_words(view: View) -> Iterator[str]:
    """The curves, as a sentence each. Their last points are not the header's figures, which are
    of the last step and of the last few.
    """
    curve = curve_of(view)
    each_of = view.figures.get("steps_each") or 1
    means = f", means of {each_of:,} steps" if each_of > 1 else ""
    for name, called, unit, digits in (
        ("loss", "loss", "nats", ".4f"),
        ("tokens_per_s", "speed", "tokens/s", ",.0f"),
    ):
        points = [
            (step, value)
            for step, value in zip(curve.get("step", ()), curve.get(name, ()), strict=False)
            if value is not None
        ]
        if points:
            (first, begins), (last, ends) = points[0], points[-1]
            then = f", {ends:{digits}} at step {last:,}" if last != first else ""
            yield f"{called}{means}: {begins:{digits}} {unit} at step {first:,}{then}"
    if means and view.progress.loss is not None:
        yield f"loss of the last step: {view.progress.loss:.4f} nats"
    if curve and view.progress.tokens_per_s is not None:
        speed = f"{view.progress.tokens_per_s:,.0f} tokens/s"
        yield f"speed of the last steps, by their median: {speed}"
    for each in view.figures.get("evaluations", ())[-1:]:
        yield f"validation: {each['val_bpb']:.4f} bits per byte after {each['step']:,} steps"
    if view.sampled:
        yield "the curve is of a sample of its lines: the journal is long"

"""The curves of a run: its loss with the validation beside it, and its speed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from yoked.watch.terminal.charts import Curve, draw
from yoked.watch.terminal.ink import Line, Span, beside
from yoked.watch.view import View


def curves(view: View, width: int, rows: int, *, recent: bool) -> list[Line]:
    """Loss and speed by step: side by side, or the first that is known where there is little room.

    recent: of the last steps alone.
    """
    drawn = curves_of(view, recent=recent) if rows >= 3 else []
    if not drawn:
        return []
    if width < 64 or len(drawn) == 1:
        return draw(drawn[0], width - 1, rows)
    half = (width - 1) // 2
    left, right = (draw(each, half - 1, rows) for each in drawn)
    return [beside(one, other, half) for one, other in zip(left, right, strict=True)]


def curves_of(view: View, *, recent: bool) -> list[Curve]:
    """Those of which there is a point."""
    every = (_loss(view, recent=recent), _speed(view, recent=recent))
    return [each for each in every if each.is_drawn]


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

"""The curves of a run: its loss with the validation beside it, and its speed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from yoked.watch.terminal.charts import Curve, draw
from yoked.watch.terminal.ink import Line, Span, beside
from yoked.watch.view import View


class Zoom(NamedTuple):
    """Which steps a curve is of. name: of its axis; part: of all steps, from the end; None: the
    last ones, each of them.
    """

    name: str
    part: float | None


ZOOMS = (
    Zoom("step", 1.0),
    Zoom("step, last half", 0.5),
    Zoom("step, last tenth", 0.1),
    Zoom("step, one by one", None),
)


def curves(view: View, width: int, rows: int, zoom: Zoom) -> list[Line]:
    """Loss and speed by step: side by side, or the first that is known where there is little
    room.
    """
    drawn = curves_of(view, zoom) if rows >= 3 else []
    if not drawn:
        return []
    if width < 64 or len(drawn) == 1:
        return draw(drawn[0], width - 1, rows)
    half = (width - 1) // 2
    left, right = (draw(each, half - 1, rows) for each in drawn)
    return [beside(one, other, half) for one, other in zip(left, right, strict=True)]


def curves_of(view: View, zoom: Zoom) -> list[Curve]:
    """Those of which there is a point."""
    if zoom.part is None:
        last = view.recent
        steps: Sequence[float] = last.step
        losses: Sequence[float | None] = last.loss
        speeds: Sequence[float | None] = [
            tokens / dt_s if dt_s > 0 else None
            for tokens, dt_s in zip(last.tokens, last.dt_s, strict=False)
        ]
    else:
        curve = curve_of(view)
        every = curve.get("step", ())
        begins = bisect_left(every, every[-1] * (1 - zoom.part)) if every else 0
        steps, losses, speeds = (
            curve.get(name, ())[begins:] for name in ("step", "loss", "tokens_per_s")
        )
    drawn = (_loss(view, steps, losses, zoom), _speed(view, steps, speeds, zoom))
    return [each for each in drawn if each.is_drawn]


def curve_of(view: View) -> Mapping[str, Any]:
    """The columns of a run's curve; empty: it has none."""
    curve = view.figures.get("curve")
    return curve if isinstance(curve, Mapping) else {}


def _loss(view: View, steps: Sequence[float], values: Sequence[float | None], zoom: Zoom) -> Curve:
    title: list[Span | str | tuple[str, str]] = [(" loss ", "strong")]
    if view.progress.loss is not None:
        title.append(f"{view.progress.loss:.4f} ")
    title.append(("nats", "dim"))
    pairs = [(x, y) for x, y in zip(steps, values, strict=False) if y is not None]
    points, scale = _validation(view, pairs) if pairs else ([], 1.0)
    if points:
        title += [("  o ", "validation"), (f"val {points[-1][1]:.4f} bpb", "dim")]
    return Curve(title, steps, values, "loss", axis=zoom.name, marks=points, mark_scale=scale)


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


def _speed(view: View, steps: Sequence[float], values: Sequence[float | None], zoom: Zoom) -> Curve:
    title: list[Span | str | tuple[str, str]] = [(" speed ", "strong")]
    if view.progress.tokens_per_s is not None:
        title.append(f"{view.progress.tokens_per_s:,.0f} ")
    title.append(("tokens/s", "dim"))
    return Curve(title, steps, values, "speed", axis=zoom.name, from_zero=True)

"""The loss curve of a run, as PNG and SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.core.faults import fault
from yoked.core.fs import read_json
from yoked.errors import YokedError
from yoked.report.drawing import (
    BLUE,
    GREY,
    ORANGE,
    PALE_BLUE,
    REFERENCE,
    drawing,
    label,
    legend_above,
    save,
)
from yoked.report.metrics import EvaluationLine, ResumedLine, lines_that_count
from yoked.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GRID = {
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
}
# Standard deviation of the smoothing weights, as a fraction of the run.
_SMOOTHING_FRACTION = 0.01
_MAX_SMOOTHING_STEPS = 200.0


@dataclass(frozen=True)
class Curve:
    """The points of a run's loss curve, by step.

    Training: step, loss in nats, tokens so far. Evaluations: step, bits per byte. resumed: the
    steps at which a later attempt went on.
    """

    steps: list[int]
    losses: list[float]
    tokens: list[float]
    eval_steps: list[int]
    eval_bpb: list[float]
    resumed: list[int]

    @property
    def last_step(self) -> int:
        """The last step that has a point: an evaluation counts the steps before it."""
        return max([self.steps[-1], *self.eval_steps[-1:]])


def read_curve(metrics: Path) -> Curve:
    """Read the loss curve of the attempts that were not superseded.

    Raises YokedError for lines that no run writes.
    """
    steps, losses, tokens, total = list[int](), list[float](), list[float](), 0.0
    evaluations: dict[int, float] = {}
    resumed = set[int]()
    for line in lines_that_count(metrics):
        if isinstance(line, ResumedLine):
            resumed.add(line.step)
        elif isinstance(line, EvaluationLine):
            if line.val_bpb is not None:
                evaluations[line.step] = line.val_bpb
        elif line.loss is not None:
            total += line.tokens
            steps.append(line.step)
            losses.append(line.loss)
            tokens.append(total)
    # One that began anew, or has taken no step yet, parts nothing from nothing.
    parts = resumed & {*steps[1:]}
    return Curve(
        steps,
        losses,
        tokens,
        eval_steps=sorted(evaluations),
        eval_bpb=[evaluations[step] for step in sorted(evaluations)],
        resumed=sorted(parts),
    )


def smooth(values: list[float], span: float) -> list[float]:
    """Gaussian-weighted moving mean. span: standard deviation of the weights, in points.

    The window is centred, so that a falling curve is not drawn late.
    """
    import numpy as np

    reach = math.ceil(3 * span)  # 0.3% of the weights lie beyond
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / span) ** 2)
    centred = slice(reach, reach + len(values))
    # The window is cut at both ends of the run: only the weights that are used count.
    used = np.convolve(np.ones(len(values)), weights)[centred]
    smoothed: list[float] = (np.convolve(values, weights)[centred] / used).tolist()
    return smoothed


def plot_loss(run_dir: Path) -> tuple[Path, Path]:
    """Draw `loss.png` and `loss.svg` into a run's folder and return their paths.

    The same metrics give the same bytes of SVG. Raises YokedError if there is nothing to draw, or
    where it cannot be written.
    """
    metrics = run_dir / "metrics.jsonl"
    if not metrics.is_file():
        raise fault("no-metrics", folder=run_dir)
    curve = read_curve(metrics)
    if not curve.steps:
        raise YokedError(f"{metrics} has no step yet", fix="wait for the first step and try again")
    png, svg = run_dir / "loss.png", run_dir / "loss.svg"
    # A run that has no run.json yet is drawn without its facts.
    facts = read_json(run_dir / "run.json") or {}
    with drawing(_GRID):
        figure = _figure(curve, facts, run_dir.name)
        save(figure, png)
        save(figure, svg)
    return png, svg


def _figure(curve: Curve, facts: dict[str, Any], run: str) -> Figure:
    from matplotlib.figure import Figure

    has_evaluations = bool(curve.eval_steps)
    figure = Figure(figsize=(8, 6.2 if has_evaluations else 4.4), layout="constrained")
    if has_evaluations:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
        _draw_evaluations(bottom, curve)
    else:
        top = bottom = figure.subplots()
    _draw_training(top, curve, _number(facts.get("data"), "unigram_entropy_nats"))
    bottom.set_xlabel("step")
    # The axis must have a width after one step, too.
    bottom.set_xlim(min(curve.steps[0], 0), max(curve.last_step, 1))
    # A folder's name may have dollars in it, which are no formula.
    title = _title(facts, run, curve)
    figure.suptitle(title, fontsize=12, x=0.02, ha="left", parse_math=False)
    return figure


def _draw_training(axes: Axes, curve: Curve, unigram_nats: float | None) -> None:
    span = min(max(2.0, len(curve.steps) * _SMOOTHING_FRACTION), _MAX_SMOOTHING_STEPS)
    smoothed = smooth(curve.losses, span)
    axes.plot(curve.steps, curve.losses, color=PALE_BLUE, linewidth=0.8, label="each step")
    axes.plot(curve.steps, smoothed, color=BLUE, linewidth=1.8, label="smoothed")
    if unigram_nats is not None:
        name = f"unigram entropy of the data, {unigram_nats:.2f}"
        axes.axhline(unigram_nats, label=name, **REFERENCE)
    for number, step in enumerate(curve.resumed):
        style: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": ":"}
        axes.axvline(step, label="" if number else f"resumed ({len(curve.resumed)})", **style)
    end = (curve.steps[-1], smoothed[-1])
    label(axes, f"{smoothed[-1]:.3f}", end, 5, color=BLUE, annotation_clip=False)
    axes.set_ylabel("training loss (nats per token)")
    legend_above(axes)


def _draw_evaluations(axes: Axes, curve: Curve) -> None:
    style: dict[str, Any] = {"linewidth": 1.5, "marker": "o", "markersize": 4, "clip_on": False}
    axes.plot(curve.eval_steps, curve.eval_bpb, color=ORANGE, **style)
    end = (curve.eval_steps[-1], curve.eval_bpb[-1])
    label(axes, f"{curve.eval_bpb[-1]:.3f}", end, 5, color=ORANGE, annotation_clip=False)
    axes.set_ylabel("validation\n(bits per byte)")
    axes.margins(y=0.15)


def _title(facts: dict[str, Any], run: str, curve: Curve) -> str:
    parts = [f"run {run}"]
    depth = _number(facts.get("model"), "n_layer")
    total = _number(facts.get("params"), "total")
    if depth is not None:
        parts.append(f"depth {depth:.0f}")
    if total is not None:
        parts.append(f"{format_count(total)} parameters")
    if curve.tokens[-1] > 0:
        parts.append(f"{format_count(curve.tokens[-1])} tokens")
    return "  ·  ".join(parts)


def _number(facts: object, key: str) -> float | None:
    value = facts.get(key) if isinstance(facts, dict) else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

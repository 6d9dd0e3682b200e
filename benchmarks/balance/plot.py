"""Draws results/balance.svg from the results: both parts of the benchmark.

usage: plot.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from matplotlib.axes import Axes  # noqa: E402
from picture import COLOURS, mark, new_figure, plain, save  # noqa: E402

RESULTS = HERE / "results"
ALPHA, BETA, TOGETHER = COLOURS[0], COLOURS[1], COLOURS[2]


def draw_efficiency(axes: Axes, found: dict[str, Any]) -> None:
    """By round: what both hosts do alone, one on the other, and what they do together."""
    for number, each in enumerate(found["rounds"], start=1):
        alpha, beta = each["alone"]
        axes.bar(number - 0.2, alpha, 0.36, color=ALPHA, label="alpha alone")
        axes.bar(number - 0.2, beta, 0.36, bottom=alpha, color=BETA, label="beta alone")
        axes.bar(number + 0.2, each["together"], 0.36, color=TOGETHER, label="together")
        top = (number + 0.2, each["together"])
        above = {"textcoords": "offset points", "xytext": (0, 3), "ha": "center"}
        axes.annotate(f"{each['ratio']:.1%}", top, **above)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[:3], names[:3], frameon=False, ncols=3, loc="upper center", fontsize=8)
    axes.margins(y=0.2)
    axes.set_xticks(range(1, len(found["rounds"]) + 1))
    axes.set(xlabel="round", ylabel="tokens per second")
    plain(axes, "Hosts of 4:1, 16,384 tokens a step")


def draw_slowing(axes: Axes, found: dict[str, Any]) -> None:
    """Each step's time; where a host slowed and healed, and when rows moved."""
    steps = [line["step"] for line in found["steps"][1:]]
    axes.plot(steps, [line["dt_s"] for line in found["steps"][1:]], color=TOGETHER, marker=".")
    slowed, healed = found["acted_at"]
    axes.axvspan(slowed, healed, color=COLOURS[0], alpha=0.4, zorder=0, linewidth=0)
    top = axes.get_ylim()[1]
    for change in found["changes"]:
        mark(axes, change["step"], across=False)
        axes.annotate(":".join(map(str, change["rows"])), (change["step"] + 0.5, top), va="top")
    axes.plot([slowed, healed], [found["best_s"]] * 2, color=COLOURS[3], label="at best")
    axes.set(xlabel="step", ylabel="seconds a step", ylim=(0, top * 1.05))
    axes.legend(frameon=False, loc="lower right")
    plain(axes, "alpha slows to half, and is healed; dashed: rows move")


DRAW = {"efficiency": draw_efficiency, "slowing": draw_slowing}


def main() -> int:
    parts: dict[str, Any] = {}
    for file in sorted(RESULTS.glob("*-exact-alpha.json")):
        kept = json.loads(file.read_text(encoding="utf-8"))
        parts.update({part: kept[part] for part in DRAW if part in kept})
    if not parts:
        raise SystemExit(f"{RESULTS} has no result yet: run bench.py")
    figure = new_figure(11, 4)
    panels = figure.subplots(1, len(parts), squeeze=False, width_ratios=range(1, len(parts) + 1))
    for axes, (part, found) in zip(panels[0], parts.items(), strict=True):
        DRAW[part](axes, found)
    save(figure, RESULTS / "balance.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

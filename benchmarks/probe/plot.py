"""Draws results/probe.svg from results/results.json.

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
NAMES = {
    "ours": "our sender",
    "both_ways": "both ways at once",
    "all_reduce_busbw": "all_reduce of 64 MB",
}
LIMIT_S = 30


def draw_link(axes: Axes, measured: dict[str, Any], goal: float) -> None:
    """Each round's goodput over iperf3's median."""
    for place, name in enumerate(NAMES):
        over = [each[name] / measured["iperf3_bytes_per_s"] for each in measured["rounds"]]
        axes.bar(place, measured["of_iperf3"][name], color=COLOURS[1])
        axes.plot([place] * len(over), over, "o", color=COLOURS[2])
    axes.set_xticks(range(len(NAMES)), [name.replace(" ", "\n", 1) for name in NAMES.values()])
    axes.axhline(goal, color=COLOURS[3], linewidth=1)
    mark(axes, 1.0, across=True)
    axes.set(ylabel="of iperf3's goodput", ylim=(0.8, 1.05))
    plain(axes, measured["topology"])


def main() -> int:
    file = RESULTS / "results.json"
    if not file.exists():
        raise SystemExit(f"{file} is missing: run bench.py")
    found = json.loads(file.read_text(encoding="utf-8"))
    figure = new_figure(11, 3.6)
    *links, whole = figure.subplots(1, len(found["measured"]) + 1)
    for axes, measured in zip(links, found["measured"], strict=True):
        draw_link(axes, measured, found["goal"])
    seconds = found["whole_probes_of_four_s"]
    whole.bar(range(1, len(seconds) + 1), seconds, color=COLOURS[1])
    whole.axhline(LIMIT_S, color=COLOURS[3], linewidth=1)
    whole.set(xlabel="probe", ylabel="seconds")
    plain(whole, "a whole probe of four hosts")
    save(figure, RESULTS / "probe.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

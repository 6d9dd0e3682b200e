"""The results as Markdown, for the README, and as a picture beside them.

usage: table.py

Reads results/*.json, draws two_hosts.svg and losses.svg there, prints tables.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from matplotlib.axes import Axes  # noqa: E402
from picture import COLOURS, mark, new_figure, plain, save  # noqa: E402

RESULTS = HERE / "results"
# The losses of so many steps are compared; they may be so far off.
LAST, MOST_PERCENT = 20, 0.5


def read(kind: str) -> list[dict[str, Any]]:
    """Results of a kind, speed or losses, by file name."""
    files = sorted(RESULTS.glob(f"{kind}-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def title(result: dict[str, Any]) -> str:
    """The configuration in a few words."""
    known = result["configuration"]
    speeds = ":".join(f"{speed:g}" for speed in known["speeds"])
    unequal = "" if known["speeds"][0] == known["speeds"][1] else f", hosts {speeds}"
    return f"{known['link']}, {known['tokens']:,} tokens a step, {known['dtype']}{unequal}"


def speed_table(result: dict[str, Any]) -> list[str]:
    """One configuration: a line for each arm."""
    lines = [
        f"**{title(result)}**",
        "",
        "| | tokens/s | x faster | undisturbed | of the sum | x nanochat | sent | comm | loss |",
        "| --- " * 9 + "|",
    ]
    for arm, figures in result["summary"].items():
        spread = f"{min(figures['speedups']):.2f} to {max(figures['speedups']):.2f}"
        sent = max((each["wire"] for each in figures["sent"].values()), default=0.0)
        over = figures.get("over_nanochat")
        cells = [
            arm,
            f"{figures['tokens_per_second']:,.0f}",
            f"{figures['speedup']:.2f} ({spread})",
            f"{figures['undisturbed']:.2f}",
            f"{figures['efficiency']:.0%}",
            f"{over:.2f}" if over else "",
            f"{sent / 1e6:.1f} MB" if sent else "",
            f"{max(figures['comm_s']):.2f} s" if figures["comm_s"] else "",
            f"{figures['last_loss']:.4f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def loss_table(result: dict[str, Any]) -> list[str]:
    """One configuration: how far each strategy's final loss is off, by seed."""
    seeds = list(result["losses"])
    lines = [
        f"**{title(result)}, loss after {result['configuration']['steps']} steps**",
        "",
        "| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |",
        "| --- " * (len(seeds) + 2) + "|",
    ]
    for sync, off in result["loss_off_percent"].items():
        by_seed = " | ".join(f"{off[seed]:+.3f}%" for seed in seeds)
        lines.append(f"| {sync} | {by_seed} | {statistics.mean(off.values()):+.3f}% |")
    return [*lines, ""]


def draw_speeds(results: list[dict[str, Any]]) -> None:
    """By configuration and arm: tokens a second over the faster host alone, and bytes sent."""
    figure = new_figure(11, 1.0 + 2.1 * len(results))
    rows = figure.subplots(len(results), 2, squeeze=False, width_ratios=(3, 2))
    for (speed, sent), result in zip(rows, results, strict=True):
        summary = result["summary"]
        bars(speed, {arm: figures["speedup"] for arm, figures in summary.items()}, "{:.2f}x")
        mark(speed, 1.0, across=False)
        plain(speed, title(result))
        megabytes = {
            arm: max(each["wire"] for each in figures["sent"].values()) / 1e6
            for arm, figures in summary.items()
            if figures["sent"]
        }
        bars(sent, megabytes, "{:.1f} MB", first=len(summary) - len(megabytes))
        plain(sent, "sent a step and host, headers included")
    rows[-1, 0].set_xlabel("tokens per second, over those of the faster host alone")
    rows[-1, 1].set_xlabel("MB")
    save(figure, RESULTS / "two_hosts.svg")


def bars(axes: Axes, values: dict[str, float], form: str, first: int = 0) -> None:
    """A bar for each value with its figure. first: of the colours."""
    colours = [COLOURS[(first + place) % len(COLOURS)] for place in range(len(values))]
    axes.barh(list(values), list(values.values()), color=colours)
    for place, value in enumerate(values.values()):
        axes.annotate(
            form.format(value),
            (value, place),
            textcoords="offset points",
            xytext=(4, 0),
            va="center",
        )
    axes.invert_yaxis()
    axes.margins(x=0.15)


def draw_losses(results: list[dict[str, Any]]) -> None:
    """Curves of every strategy and seed beside those of one process, and how far they are off."""
    figure = new_figure(11, 3.4 * len(results))
    rows = figure.subplots(len(results), 2, squeeze=False)
    for (curves, off), result in zip(rows, results, strict=True):
        for by_arm in result["losses"].values():
            for place, losses in enumerate(by_arm.values()):
                look = {"color": COLOURS[(place + 2) % len(COLOURS)], "linewidth": 1}
                curves.plot(losses, alpha=0.7, **look)
                if place:
                    expected = by_arm["one process"]
                    percent = [100 * (a / b - 1) for a, b in zip(losses, expected, strict=True)]
                    off.plot(running_mean(percent), **look)
        arms = list(next(iter(result["losses"].values())))
        curves.legend(curves.lines[: len(arms)], arms, frameon=False)
        seeds = ", ".join(result["losses"])
        plain(curves, f"{title(result)}: loss by step, seeds {seeds}")
        plain(off, f"off from one process, mean of {LAST} steps, %")
        mark(off, 0.0, across=True)
        for bound in (-MOST_PERCENT, MOST_PERCENT):
            off.axhline(bound, color=COLOURS[3], linewidth=1)
    save(figure, RESULTS / "losses.svg")


def running_mean(values: list[float]) -> list[float]:
    """Of the last LAST values up to each."""
    return [statistics.mean(values[max(0, end - LAST) : end]) for end in range(1, len(values) + 1)]


def main() -> int:
    speeds, losses = read("speed"), read("losses")
    if not speeds and not losses:
        raise SystemExit(f"{RESULTS} has no result yet: run bench.py")
    lines = [line for result in speeds for line in speed_table(result)]
    lines += [line for result in losses for line in loss_table(result)]
    print("\n".join(lines))
    for results, draw in ((speeds, draw_speeds), (losses, draw_losses)):
        if results:
            draw(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

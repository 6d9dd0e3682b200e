"""The results as Markdown, for the README, and as a picture beside them.

usage: table.py            # reads results/*.json, writes results/two_hosts.svg, prints tables
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PLOT = RESULTS / "two_hosts.svg"
COLOURS = ("#c9d6e6", "#9db8d9", "#1f4e8c", "#b4501e", "#6b8e23", "#7a5195")


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


def draw(results: list[dict[str, Any]]) -> None:
    """Tokens a second of every arm over the faster host alone, by configuration."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "yoked", "font.size": 10})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.0 + 2.1 * len(results)), layout="constrained")
    rows = figure.subplots(len(results), 1, squeeze=False)[:, 0]
    for axes, result in zip(rows, results, strict=True):
        arms = list(result["summary"])
        ratios = [result["summary"][arm]["speedup"] for arm in arms]
        colours = [COLOURS[number % len(COLOURS)] for number in range(len(arms))]
        axes.barh(arms, ratios, color=colours)
        axes.axvline(1.0, color="#6b6b6b", linewidth=1, linestyle=(0, (4, 3)))
        for place, ratio in enumerate(ratios):
            axes.annotate(
                f"{ratio:.2f}x",
                (ratio, place),
                textcoords="offset points",
                xytext=(4, 0),
                va="center",
            )
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(title(result), fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("tokens per second, over those of the faster host alone")
    figure.savefig(PLOT, metadata={"Date": None, "Creator": "yoked"})


def main() -> int:
    speeds, losses = read("speed"), read("losses")
    if not speeds and not losses:
        raise SystemExit(f"{RESULTS} has no result yet: run bench.py")
    lines = [line for result in speeds for line in speed_table(result)]
    lines += [line for result in losses for line in loss_table(result)]
    print("\n".join(lines))
    if speeds:
        draw(speeds)
        print(f"drew {PLOT}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Draws docs/pictures/late.svg: what two hosts compute and send in a step, exact and late.

usage: timeline.py

Of the simulator that `yoked plan` foresees steps with: two equal hosts of a core, depth 4, 16,384
tokens a step, which take one of them 10 s, at 20 Mbit/s, in int4.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from matplotlib.axes import Axes  # noqa: E402
from picture import new_figure, plain, save  # noqa: E402

from yoked.costmodel.model_shape import ModelShape  # noqa: E402
from yoked.costmodel.simulator import (  # noqa: E402
    ADAMW,
    BACKWARD,
    CODEC,
    FORWARD,
    LM_HEAD,
    MUON,
    PASSES,
    Span,
    step_timeline,
)
from yoked.costmodel.step_plan import (  # noqa: E402
    REPLICATED,
    best_rows,
    plan_step,
    rank_work,
    step_traffic,
)
from yoked.plan.costs import rank_costs  # noqa: E402
from yoked.plan.network import network_of  # noqa: E402
from yoked.plan.simulated_fleet import SimulatedFleet, SimulatedHost, simulate  # noqa: E402

PICTURE = HERE.parents[1] / "docs" / "pictures" / "late.svg"
TOKENS, BATCH, LENGTH = 16_384, 2, 512
AT_ONCE_S = 0.005
SYNCS = ("int4", "late-head:int4", "late:int4")
Word = tuple[str, str]
# By kind, the word for it and its colour.
COMPUTED = {
    PASSES: ("whole micro-batches", "#c9d6e6"),
    FORWARD: ("forward, lm_head", "#6f95c4"),
    LM_HEAD: ("forward, lm_head", "#6f95c4"),
    BACKWARD: ("backward", "#e3d3a8"),
    MUON: ("optimizer", "#7a5195"),
    ADAMW: ("optimizer", "#7a5195"),
    CODEC: ("encode, decode", "#6b6b6b"),
}
ROWS = ("table rows", "#b4501e")
SENT = {
    "head": ("lm_head's gradient", "#1f4e8c"),
    "layers": ("matrices' gradients", "#6b8e23"),
    "updates": ("new matrices", "#b5cf85"),
}


def timeline(sync: str) -> tuple[list[Span], list[Span]]:
    shape = ModelShape.from_depth(4, sequence_len=LENGTH, vocab_size=32_768)
    hosts = [SimulatedHost(name=n, tflops=0.29, up="20 Mbit/s", dtype="float32") for n in "ab"]
    measurement = simulate(SimulatedFleet(host=hosts, rtt_ms=0.3), shape, BATCH)
    ranks = rank_costs(measurement, shape)["float32"]
    rows = best_rows(TOKENS // LENGTH, ranks, BATCH)
    plan = plan_step(
        shape, ranks, sync=sync, lm_head=REPLICATED, rows=rows, device_batch_size=BATCH
    )
    works = [rank_work(plan, shape, rank, cost) for rank, cost in enumerate(ranks)]
    return step_timeline(works, step_traffic(plan, shape), network_of(measurement, "ab"))


def joined(spans: list[Span], words: dict[str, Word]) -> list[tuple[Word, float, float]]:
    """What follows at once on the same is one with it."""
    found: list[tuple[Word, float, float]] = []
    for span in spans:
        word, begins_s = words.get(span.what, ROWS), span.begins_s
        if found and found[-1][0] == word and begins_s - found[-1][2] < AT_ONCE_S:
            begins_s = found.pop()[1]
        found.append((word, begins_s, span.ends_s))
    return found


def draw(axes: Axes, sync: str) -> float:
    """One way of sync; returns when its step ends."""
    computed, sent = timeline(sync)
    for row, spans, words in ((1, computed, COMPUTED), (0, sent, SENT)):
        for (word, colour), begins_s, ends_s in joined(spans, words):
            length_s = ends_s - begins_s
            axes.barh(row, length_s, left=begins_s, height=0.6, color=colour, label=word)
    ends_s = max(span.ends_s for span in computed)
    axes.axvline(ends_s, color="#6b6b6b", linewidth=1)
    axes.set_yticks([1, 0], ["computes", "sends"])
    plain(axes, f"--sync {sync}: a step takes {ends_s:.1f} s")
    return ends_s


def main() -> None:
    figure = new_figure(8, 5.6)
    axes = figure.subplots(len(SYNCS), 1, sharex=True)
    longest_s = max(draw(each, sync) for each, sync in zip(axes, SYNCS, strict=True))
    for each in axes:
        each.set_xlim(0, longest_s)
    axes[-1].set_xlabel("seconds since the step began, at 20 Mbit/s")
    found: dict[str, object] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4, frameon=False)
    save(figure, PICTURE)


if __name__ == "__main__":
    main()

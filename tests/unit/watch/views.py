"""Views of runs, and a run that is looked at, for tests of what draws them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from yoked.errors import HostError, UsageError
from yoked.watch.view import (
    Cost,
    LinkNow,
    Progress,
    RankNow,
    RecentSteps,
    RunRow,
    Verdict,
    View,
)

# 2026-03-01 02:10:00 UTC.
NOW_S = 1772331000.0
MBIT = 1e6


def figures(steps: int = 1234, points: int = 200) -> dict[str, Any]:
    each = [max(1, round((place + 1) * steps / points)) for place in range(points)]
    loss: list[float | None] = [
        3.1 + 7.6 * math.exp(-step / steps * 9) + 0.04 * math.sin(step * 1.7) for step in each
    ]
    # Some of its lines were lost.
    loss[points // 2] = None
    speed = [0.0 if step < 2 else 12_300 + 400 * math.sin(step / 40) for step in each]
    return {
        "curve": {"step": each, "loss": loss, "tokens_per_s": speed, "ranks": []},
        "steps_each": max(1, steps // points),
        "evaluations": [
            {"step": round(steps * part), "val_bpb": 0.98 + 2.3 * math.exp(-part * 9)}
            for part in (0.2, 0.4, 0.6, 0.8)
        ],
        "events": [
            event(-4000, "start", "plain", "started on 2 ranks, with 16:16 rows of a step"),
            event(
                -1900, "shares", "plain", "rows were moved by the steps measured: 16:16 -> 20:12"
            ),
            event(-600, "warning", "warning", "garage: its processor is hot (throttled)", step=900),
            event(-420, "over", "good", "garage: throttled is over, after 3 min 00 s", step=980),
        ],
    }


def event(
    after_s: float, kind: str, level: str, text: str, step: int | None = None
) -> dict[str, Any]:
    fix = ["clean its fan"] if level == "warning" else []
    return {
        "time_s": NOW_S + after_s,
        "step": step,
        "attempt": 0,
        "kind": kind,
        "level": level,
        "text": text,
        "fix": fix,
    }


def recent(ranks: int, steps: int = 40, last: int = 1234) -> RecentSteps:
    wait_s = [
        tuple(0.05 + 0.3 * abs(math.sin(step / 5 + rank)) * rank for step in range(steps))
        for rank in range(ranks)
    ]
    return RecentSteps(
        step=tuple(range(last - steps + 1, last + 1)),
        dt_s=tuple(1.3 + 0.05 * math.sin(step) for step in range(steps)),
        tokens=(16384.0,) * steps,
        loss=tuple(None if step == 20 else 3.2 - step / 400 for step in range(steps)),
        wait_s=tuple(wait_s),
    )


HEALTHY = View(
    run="night-1",
    state="running",
    active=True,
    time_s=NOW_S,
    verdict=Verdict(
        "good",
        "night-1 gets on as foreseen: a step takes 1.33 s, 1.31 s were foreseen",
        why=("of each step a rank spends 80% computing, 11% communication and 9% waiting",),
        next=(
            "yoked plan    ranks the ways to send less: --sync int8, a larger --total-batch-size",
        ),
    ),
    progress=Progress(1234, 5000, 4.9e3, 12_345.6, 3.1123, 0.9912),
    ranks=(
        RankNow(
            0,
            "attic",
            {"computes": 0.84, "sends": 0.11, "waits": 0.02},
            memory_bytes=1_930_000_000,
        ),
        RankNow(
            1,
            "garage",
            {"computes": 0.71, "sends": 0.11, "waits": 0.16},
            waits_for=(0,),
            memory_bytes=1_870_000_000,
        ),
    ),
    links=(
        LinkNow("attic", "garage", 412 * MBIT, 941 * MBIT, 0.00031),
        LinkNow("garage", "attic", 409 * MBIT, 938 * MBIT, 0.00032, resent=0.012),
    ),
    recent=recent(2),
    figures=figures(),
    cost=Cost(1240.0, 8000.0, 45_300),
)

FAULT = replace(
    HEALTHY,
    run="night-2",
    verdict=Verdict(
        "bad",
        "the run stands: rank 1 on garage has not come to the all-reduce of step 1,235 for 32 s",
        why=(
            "rank 0 waits in all_reduce since 32 s; rank 1 is in state D, in nfs_wait_bit_killable",
            "the link between attic and garage carries nothing since 31 s, and answers pings",
        ),
        next=("on garage: sudo mount -o remount /data", "yoked diagnose night-2"),
    ),
    progress=Progress(1234, 5000, None, 0.0, 3.1123),
    ranks=(
        RankNow(
            0,
            "attic",
            {"computes": 0.0, "sends": 0.0, "waits": 1.0},
            waits_for=(1,),
            memory_bytes=1_930_000_000,
        ),
        RankNow(
            1,
            "garage",
            {"computes": 0.01},
            doing="stands for 32 s",
            level="bad",
            memory_bytes=1_870_000_000,
        ),
    ),
    silent={"shed": "no answer to ssh within 10 s"},
)

OVER = replace(
    HEALTHY,
    run="night-3",
    state="finished",
    active=False,
    verdict=Verdict(
        "good",
        "run night-3 finished: 5,000 steps, 81.9M tokens, loss 3.0871, validation 0.9801 bits per "
        "byte, 12,346 tokens/s",
        why=("of each step a rank spends 80% computing, 11% communication and 9% waiting",),
        next=("yoked report night-3",),
    ),
    progress=Progress(5000, 5000, None, 12_345.6, 3.0871, 0.9801),
    ranks=tuple(replace(each, waits_for=(), memory_bytes=None) for each in HEALTHY.ranks),
    links=(),
    recent=RecentSteps(),
    figures=figures(5000),
    cost=None,
)

PROGRAM = View(
    run="20260301-010203",
    state="running",
    active=True,
    time_s=NOW_S,
    verdict=Verdict(
        "plain", "20260301-010203 runs: torchrun's train.py on 2 hosts, for 2 h 08 min"
    ),
    progress=Progress(),
    ranks=(
        RankNow(0, "attic", {"computes": 0.62, "waits": 0.31}, memory_bytes=901_000_000),
        RankNow(1, "garage", {"computes": 0.9, "waits": 0.05}, memory_bytes=899_000_000),
    ),
    links=(LinkNow("attic", "garage", 3.2 * MBIT), LinkNow("garage", "attic", 3.1 * MBIT)),
    figures={"events": [event(-7680, "start", "plain", "started on 2 ranks")]},
    cost=Cost(310.0, 8000.0, 41_000),
)

EIGHT = replace(
    HEALTHY,
    run="eight",
    ranks=tuple(
        RankNow(
            rank,
            f"node{rank // 2}",
            {"computes": 0.9 - 0.08 * rank, "sends": 0.07, "waits": 0.02 + 0.08 * rank},
            waits_for=(0,) if rank else (),
            doing="saves" if rank == 3 else "",
            memory_bytes=(16 + rank) * 10**9,
        )
        for rank in range(8)
    ),
    links=tuple(
        LinkNow(f"node{one}", f"node{two}", (90 + 40 * one + two) * MBIT, 2350 * MBIT, 0.0002)
        for one in range(4)
        for two in range(4)
        if one != two
    ),
    recent=recent(8),
)

HOSTILE = replace(
    HEALTHY,
    run="x\x1b]0;owned\x07[red]y",
    verdict=Verdict("bad", "[bold]no markup[/bold] \x1b[2Jno escape", ("\u202eesrever",)),
    ranks=(replace(HEALTHY.ranks[0], host="[red]evil[/red]", doing="\x1b[31mred\nline"),),
    links=(LinkNow("a\x1b[1m", "[b]", 1e6),),
    figures={"events": [event(-1, "start", "plain", "[link=x]\x1b[5mtext\r\nmore")]},
    silent={"h\x07": "[red]\x9b2J"},
)

RUNS = [
    RunRow("night-1", "running", ("attic", "garage"), NOW_S - 4000, 1234, 3.1123),
    RunRow("night-0", "finished", ("attic", "garage"), NOW_S - 90_000, 5000, 3.0871),
    RunRow("20260301-010203", "failed", ("attic",), NOW_S - 200_000),
]


@dataclass
class Fake:
    """Looked at in the place of a run. view: an error: a look raises it."""

    view: View | HostError | None = HEALTHY
    rows: list[RunRow] = field(default_factory=lambda: list(RUNS))
    written: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    in_save: Callable[[], object] = lambda: None
    in_log: Callable[[], object] = lambda: None
    now_s: float = NOW_S

    def runs(self) -> list[RunRow]:
        return list(self.rows)

    def choose(self, run: str) -> None:
        self.asked.append(f"choose {run}")
        self.view = replace(HEALTHY, run=run)

    def look(self) -> View:
        if self.view is None:
            raise UsageError("no run was chosen, as there is none", fix="yoked train")
        if isinstance(self.view, HostError):
            raise self.view
        return self.view

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        raise AssertionError("nobody asks")

    def log(self, rank: int, lines: int) -> list[tuple[str, str]]:
        self.asked.append(f"log {rank}")
        self.in_log()
        return self.written[-lines:]

    def save(self) -> str:
        self.asked.append("save")
        self.in_save()
        return "run night-1 saved after 1,240 steps, and goes on"

    def stop(self, *, now: bool = False) -> str:
        self.asked.append(f"stop {now}")
        return "run night-1 saved, and is stopped"

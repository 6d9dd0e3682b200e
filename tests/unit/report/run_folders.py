"""Runs' folders for tests of the report, with the files that a run writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from yoked.journal import Journal
from yoked.report.figures import figures_of
from yoked.report.run_record import read_run

START_S = 1_795_820_532.5
# What a person, a host or a file may call something.
HOSTILE = "</script><img src=x onerror=alert(1)><!-- <script> \u2028\u202e @POLICY@ \"'&"


def write_run(
    folder: Path, ranks: int = 2, steps: int = 60, *, name: str = "night", host: str = "alpha"
) -> Path:
    """A run that failed: resumed in its middle where it has more than ten steps, with two
    evaluations. Its first step is slow.
    """
    folder.mkdir(parents=True)
    with Journal(folder / "metrics.jsonl") as journal:
        for step in range(steps):
            attempt = 1 if step < steps // 2 or steps <= 10 else 2
            if attempt == 2 and step == steps // 2:
                journal.append({"attempt": 2, "resumed_at": step})
            journal.append({"attempt": attempt, **_step(step, ranks)})
            if step + 1 in (steps // 2, steps):
                journal.append(
                    {"attempt": attempt, "step": step + 1, "val_bpb": 2 - step / steps / 2}
                )
    with Journal(folder / "events.jsonl") as journal:
        rows = [4] * ranks
        start = {"event": "start", "ranks": ranks, "rows": rows, "attempt": 1, "step": 0}
        journal.append({"time_s": START_S, **start})
        shares = {"event": "shares", "rows": rows, "before": rows, "why": f"slower {host}"}
        journal.append({"time_s": START_S + 5, "attempt": 1, "step": 9, "rank": 0, **shares})
        failed = {"event": "save_failed", "what": f"no room on {host}", "attempt": 1}
        journal.append({"time_s": START_S + 6, **failed})
    facts = {
        "run": name,
        "attempt": 2,
        "started_s": START_S,
        "config": {
            "depth": 2,
            "data": host,
            "resume": False,
            "head_dim": None,
            "passed": ["depth"],
        },
        "model": {"n_layer": 2},
        "params": {"total": 1_966_134},
        "horizon": {"num_iterations": steps, "total_batch_size": 2048},
        "outlook": {"step_s": 0.05, "time_s": 0.05 * steps},
        "choices": [{"name": "dtype", "value": "bfloat16", "reason": f"measured on {host}"}],
        "hosts": [
            {"name": f"{host}{rank or ''}", "rank": rank, "device": "cpu", "torch": "2.13.0"}
            for rank in range(ranks)
        ],
    }
    (folder / "run.json").write_text(json.dumps(facts))
    fault = {"cause": "host-gone", "host": host, "evidence": ["silent for 31 s"]}
    faults = [{**fault, "fix": ["yoked doctor", "yoked plan    ranks the ways"]}]
    best = {"step": steps, "val_bpb": 2 - (steps - 1) / steps / 2}
    result = {"state": "failed", "best": best, "faults": faults}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def _step(step: int, ranks: int) -> dict[str, Any]:
    slow = 20 if step == 0 else 1
    waits = [0.002 * (1 + (step + rank) % ranks) for rank in range(ranks)]
    return {
        "step": step,
        "loss": 4 + 4 * math.exp(-step / 20),
        "dt_s": 0.1 * slow,
        "tokens": [1024] * ranks,
        "compute_s": [0.07 * slow] * ranks,
        "comm_s": [0.02 * slow] * ranks,
        "wait_s": waits,
        "head_s": [0.01] * ranks,
        "bytes_sent": [1_500_000] * ranks,
    }


def run_figures(
    folder: Path, ranks: int = 2, steps: int = 60, *, name: str = "night", host: str = "alpha"
) -> dict[str, Any]:
    """The figures of such a run."""
    return figures_of(read_run(write_run(folder, ranks, steps, name=name, host=host)))


def bare_figures(folder: Path) -> dict[str, Any]:
    """Those of a program without steps, of which nothing else is on record either."""
    folder.mkdir(parents=True)
    return figures_of(read_run(folder))

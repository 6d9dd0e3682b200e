"""A job of `yoked train`, as a host's agent tells of it."""

from __future__ import annotations

from typing import Any


def job(run: str, node: int, nodes: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """Of one node; it began 100 s ago, and nothing is known of its ranks."""
    whole = {
        "run": run,
        "launch_id": "x",
        "state": "running",
        "node_rank": node,
        "nodes": nodes,
        "folder": f"/jobs/{run}",
        "trains": run,
        "started_s": 100.0,
        "ended_s": None,
        "now_s": 200.0,
        "attempt": 0,
        "failure": None,
        "progress": None,
        "stage": None,
        "diagnosis": None,
    }
    return {**whole, **changes}

"""Two looks at a host, at the beginning and at the end of an examination: what changed between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from yoked.errors import YokedError

# What becomes of the files that show that files stay: see yoked.agent.watch.
Files = Literal["leave", "look"]


@dataclass(frozen=True)
class Sight:
    """A host at one moment. here_s: by our monotonic clock, known to within error_s; offset_s: its
    time of day minus ours; real_s, monotonic_s: by its own clocks; limits of its agent; folders:
    what became of the file that was left in each. As yoked.agent.watch tells them.
    """

    here_s: float
    error_s: float
    offset_s: float
    real_s: float
    monotonic_s: float
    limits: Mapping[str, Any]
    folders: Mapping[str, Mapping[str, Any]]


def look_at(call: Callable[..., Any], files: Files | None, timeout_s: float) -> Sight | None:
    """A host now; None: it does not answer. call: of its agent."""
    sent_s, began_s = time.time(), time.monotonic()
    try:
        told = call("watch", files=files, timeout_s=timeout_s)
    except YokedError:
        return None
    half_s = (time.monotonic() - began_s) / 2
    return Sight(
        here_s=began_s + half_s,
        error_s=half_s,
        offset_s=told["time_s"] - (sent_s + half_s),
        real_s=told["time_s"],
        monotonic_s=told["monotonic_s"],
        limits=told["limits"],
        folders=told["folders"],
    )


def with_changes(health: Mapping[str, Any], first: Sight, last: Sight) -> dict[str, Any]:
    """A host's health with what changed between two looks, each in the part that it is of."""
    clock = {
        **(health.get("clock") or {"time_s": last.real_s}),
        "watched_s": last.here_s - first.here_s,
        "error_s": first.error_s + last.error_s,
        "monotonic_s": last.monotonic_s - first.monotonic_s,
        "real_s": last.real_s - first.real_s,
    }
    folders = dict(health.get("folders") or {})
    for name, told in last.folders.items():
        if folders.get(name):
            folders[name] = {**folders[name], **told}
    limits = dict(health.get("limits") or {})
    if later := [name for name, limit in first.limits.items() if last.limits.get(name) != limit]:
        limits.update(last.limits, later=later)
    parts = {"clock": clock, "folders": folders, "limits": limits}
    return {**health, **{name: each for name, each in parts.items() if each}}

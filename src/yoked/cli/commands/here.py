"""`yoked` alone: where setting up stands, by this machine's files, and the next command.

No host is asked, so it answers at once; `yoked up` looks at the hosts themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yoked.cli.output import Output
from yoked.cli.train_extra import environment_here
from yoked.fleet.file import FILE_NAME, read_fleet
from yoked.fleet.model import Fleet
from yoked.probe.store import path_for
from yoked.runs import list_trainings
from yoked.units import format_duration, plural
from yoked.workflows.passed import passed_of

_RUNS = Path("runs")
_ALL = "yoked --help    every command"


@dataclass(frozen=True)
class _Place:
    """A step, and how far it is. at_s: when it passed, Unix time; None: it has not."""

    name: str
    said: str
    at_s: float | None

    @property
    def line(self) -> str:
        ago = "" if self.at_s is None else f", {_ago(self.at_s)}"
        return f"{self.name:<8} {self.said}{ago}"

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        state = "waiting" if self.at_s is None else "done"
        return {"name": self.name, "state": state, "said": self.said, "at_s": self.at_s}


def command(*, json_output: bool) -> int:
    """Say what is done, and what is next. Raises FleetError for a file with flaws."""
    output = Output(json_mode=json_output)
    path = Path(FILE_NAME)
    runs = list_trainings(_RUNS)
    train = _Place("train", "no run yet", None)
    if runs:
        said = f"{plural(len(runs), 'run')}, the newest: {runs[0].name}"
        train = _Place("train", said, runs[0].stat().st_mtime)
    if path.is_file():
        fleet = read_fleet(path)
        places = [*_places(fleet, path), train]
        hosts = [host.name for host in fleet.hosts]
        verdict = f"{path}: {', '.join(hosts)}"
        behind = any(place.at_s is None for place in places[:-1])
        commands = ["yoked up"] if behind else [*passed_of(fleet)["plan"].then]
    else:
        places, hosts = [train], []
        verdict = f"there is no {path} in this folder"
        commands = [
            "yoked up HOST...    your machines by their ssh names; `.` is this one",
            "yoked train    on this machine alone"
            if find_spec("torch") or environment_here()
            else "yoked up .    prepares this machine alone: it has no torch yet",
        ]
    output.result(
        {
            "ok": True,
            "fleet": str(path) if hosts else None,
            "hosts": hosts,
            "steps": [place.to_dict() for place in places],
            "next": [line.partition("    ")[0] for line in commands],
        },
        verdict=verdict,
        evidence=[place.line for place in places],
        next_commands=[*commands, _ALL],
    )
    return 0


def _places(fleet: Fleet, path: Path) -> list[_Place]:
    passed = passed_of(fleet)
    probe = path_for(fleet)
    measured_s = probe.stat().st_mtime if probe.is_file() else None
    planned = passed.get("plan")
    lacks = len(fleet.hosts) > 1 and any(host.interface is None for host in fleet.hosts)
    found: Mapping[str, tuple[str, float | None]] = {
        "init": ("interfaces are not chosen", None)
        if lacks
        else (f"{plural(len(fleet.hosts), 'host')}", path.stat().st_mtime),
        **{
            name: (passed[name].said, passed[name].at_s) if name in passed else ("not yet", None)
            for name in ("install", "doctor")
        },
        "probe": ("not yet" if measured_s is None else "measured", measured_s),
        "plan": ("not yet", None)
        if planned is None or planned.at_s < (measured_s or math.inf)
        else (planned.said, planned.at_s),
    }
    return [_Place(name, said, at_s) for name, (said, at_s) in found.items()]


def _ago(at_s: float) -> str:
    return f"{format_duration(max(0.0, time.time() - at_s))} ago"

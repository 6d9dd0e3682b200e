"""What could keep this host from training: looked at in parts, without root and without tools.

A part that cannot be told is null, and `untold` has why; none holds up another.

`PARTS` names them. What a part holds is described at its `probe_NAME`; records/host_rules.py:HEALTH
has the form of each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from yoked.agent.server import Call
from yoked.core.parallel import gather_within

# By part: the module whose `probe_NAME` tells it.
PARTS = {
    "names": "names",
    "routes": "routes",
    "gateway": "routes",
    "loopback": "loopback",
    "environment": "environ",
    "set_by": "startfiles",
    "set_limits": "startfiles",
    "preload": "environ",
    "basics": "basics",
    "firewall": "firewall",
    "limits": "limits",
    "folders": "storage",
    "ports": "listeners",
    "processes": "stale_processes",
    "memory": "limits",
    "power": "power",
    "processors": "limits",
    "wireless": "nics",
    "links": "nics",
    "settings": "settings",
    "tables": "tables",
    "tunnels": "tunnels",
    "traffic": "traffic",
    "writers": "writers",
    "enders": "enders",
    "compiler": "environ",
    "kernel": "limits",
    "clock": "clock",
    "gpu": "gpus",
    "shell": "environ",
    "virtual": "virtual",
    "asked": "asked",
}
# Which arguments of the call a probe takes; the others take none.
_TAKES = {
    "names": ("names", "addresses"),
    "routes": ("addresses",),
    "firewall": ("sudo",),
    "ports": ("ports",),
    "asked": ("asks",),
}
LIMIT_S = 2.5


def answer_health(call: Call) -> dict[str, Any]:
    """Look at the parts that are named.

    args: parts, null: all; names to resolve; addresses to find the way to; ports whose owners are
    asked for; asks, see asked.py; sudo, whether `sudo -n` may be used to read what only root reads
    (default: it may not); limit_s, for all of it. Gives {part: content} and untold {part: why}.
    """
    wanted: list[str] = call.args.get("parts") or list(PARTS)
    told, untold = gather_within(
        float(call.args.get("limit_s") or LIMIT_S),
        {name: _part(name, call.args) for name in wanted},
    )
    return {**{name: told.get(name) for name in wanted}, "untold": untold}


def _part(name: str, args: Mapping[str, Any]) -> Callable[[], Any]:
    probe = getattr(importlib.import_module(f"yoked.agent.{PARTS[name]}"), f"probe_{name}")
    given = {each: args[each] for each in _TAKES.get(name, ()) if args.get(each) is not None}
    return partial(probe, **given)

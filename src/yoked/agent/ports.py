"""The ports of this host: the range that the kernel picks from, what is taken, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.agent.listeners import listener_owners, local_port, rows

_SETTINGS = Path("/proc/sys/net/ipv4")


def part_ports(args: Mapping[str, Any]) -> dict[str, Any] | None:
    """range, reserved, taken (of the range) and owners {port: see agent.listeners} of `ports`.

    None: the system does not tell. JSON makes the ports of `owners` strings.
    """
    told = text(_SETTINGS / "ip_local_port_range").split()
    if len(told) != 2:
        return None
    low, high = int(told[0]), int(told[1])
    used = {local_port(row) for row in rows()}
    wanted: list[int] = args.get("ports") or []
    return {
        "range": [low, high],
        "reserved": text(_SETTINGS / "ip_local_reserved_ports"),
        "taken": sum(low <= port <= high for port in used),
        "owners": {str(port): listener_owners(port) for port in wanted},
    }

"""The clock of this host, and who keeps it."""

from __future__ import annotations

import os
import time
from typing import Any

from yoked.agent.ask import process_names

_KEEPERS = {
    "chronyd": "chrony",
    "ntpd": "ntp",
    "systemd-timesyn": "systemd-timesyncd",
    "openntpd": "openntpd",
    "timed": "timed",
}


def probe_clock() -> dict[str, Any]:
    """time_s: now, since 1970; service: who keeps it, if anybody does; utc_offset_s, zone: of local
    time, as a program has it.
    """
    names = process_names()
    service = next((name for comm, name in _KEEPERS.items() if comm in names), None)
    zone = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return {
        "time_s": time.time(),
        "service": service,
        "utc_offset_s": time.localtime().tm_gmtoff,
        "zone": zone or time.tzname[0],
    }

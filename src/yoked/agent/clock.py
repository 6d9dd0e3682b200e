"""The clock of this host, and whether somebody keeps it. Source: adjtimex(2)."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from yoked.agent.ask import process_names

_UNSYNCHRONISED = 0x40
# struct timex is 208 bytes on 64-bit Linux; its status follows five longs.
_TIMEX_BYTES = 512
_KEEPERS = {
    "chronyd": "chrony",
    "ntpd": "ntp",
    "systemd-timesyn": "systemd-timesyncd",
    "openntpd": "openntpd",
    "timed": "timed",
}


def probe_clock() -> dict[str, Any]:
    """time_s: now, since 1970; synchronised: whether the kernel says so; service: who keeps it;
    utc_offset_s, zone: of local time, as a program has it.
    """
    names = process_names()
    service = next((name for comm, name in _KEEPERS.items() if comm in names), None)
    zone = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return {
        "time_s": time.time(),
        "synchronised": _synchronised(),
        "service": service,
        "utc_offset_s": time.localtime().tm_gmtoff,
        "zone": zone or time.tzname[0],
    }


def _synchronised() -> bool | None:
    if not sys.platform.startswith("linux"):
        return None
    told = ctypes.create_string_buffer(_TIMEX_BYTES)
    library = ctypes.CDLL(None, use_errno=True)
    # modes is 0: nothing is changed.
    if not hasattr(library, "adjtimex") or library.adjtimex(told) < 0:
        return None
    long_bytes = ctypes.sizeof(ctypes.c_long)
    status = int.from_bytes(told.raw[5 * long_bytes : 5 * long_bytes + 4], sys.byteorder)
    return not status & _UNSYNCHRONISED

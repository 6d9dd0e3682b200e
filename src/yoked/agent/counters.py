"""What this kernel did not send, and what went through its cards; everybody may read that.

Source: net/ipv4/proc.c and Documentation/networking/xfrm_proc.rst of Linux.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

from yoked.agent.ask import number, text

_PROC, _NET = Path("/proc"), Path("/sys/class/net")
SIDES = ("rx", "tx")
_EXTENDED = "TcpExt:"
# Counts packets that were sent again and did not leave: a rule of the host's own or its queue
# refused them. Of the very first try nothing is counted.
_NOT_SENT_AGAIN = "TCPRetransFail"
_IPSEC_OUT = "XfrmOut"


def unsent_segments(proc: Path = _PROC) -> int | None:
    """TCP packets that were sent again in vain, since the start; None: the system does not tell."""
    rows = [
        line.split()[1:]
        for line in text(proc / "net/netstat").splitlines()
        if line.startswith(_EXTENDED)
    ]
    if len(rows) != 2 or _NOT_SENT_AGAIN not in rows[0]:
        return None
    return int(rows[1][rows[0].index(_NOT_SENT_AGAIN)])


def withheld_by_ipsec(proc: Path = _PROC) -> int | None:
    """Packets that an IPsec policy let nobody send, since the start; None: it does not tell."""
    rows = [line.split() for line in text(proc / "net/xfrm_stat").splitlines()]
    found = [int(row[1]) for row in rows if len(row) == 2 and row[0].startswith(_IPSEC_OUT)]
    return sum(found) if found else None


class Count(NamedTuple):
    """When cards were read, and the bytes that each had got and sent by then."""

    time_s: float
    bytes: dict[str, tuple[int, int]]


# The first reading, and that when listeners were opened first: what came between is of others.
readings: list[Count] = []
_lock = threading.Lock()


def read_cards(*, again: bool, net: Path = _NET) -> None:
    """Read the cards' counters. again: it is not the first time, and something will be sent now."""
    if not net.is_dir():
        return
    found = {}
    for card in net.iterdir():
        told = [number(card / f"statistics/{side}_bytes") for side in SIDES]
        if None not in told and card.name != "lo":
            found[card.name] = (int(told[0] or 0), int(told[1] or 0))
    with _lock:
        # Calls come at the same time.
        if len(readings) == int(again):
            readings.append(Count(time.monotonic(), found))

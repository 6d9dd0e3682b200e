"""What this host's own kernel did not send, as it counts it; everybody may read that.

Source: net/ipv4/proc.c and Documentation/networking/xfrm_proc.rst of Linux.
"""

from __future__ import annotations

from pathlib import Path

from yoked.agent.ask import text

_PROC = Path("/proc")
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

"""What a host of a run says of itself to the others. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from yoked.diagnosis.calls import Calls
from yoked.launch.bootstrap.outcome import (
    Decision,
    Failure,
    Stop,
)

# Of what went wrong, when all of it is too long to be sent.
_BRIEF_CHARACTERS = 2_000

# All hosts are there within this time of the first.
CONNECT_S = 60.0
# Longer than a switch takes to restart or a laptop to change its Wi-Fi cell: TCP survives that,
# and so can a run.
SILENCE_S = 120.0
# With --on-fault wait, for a laptop that sleeps; yoked's trainer waits no longer for a peer.
WAIT_S = 600.0


@dataclass(frozen=True)
class Notice:
    """What a host says of itself; it replaces what it said before.

    attempt: the one this host is in, or -1 before the first.
    failing: a rank of it has died in this attempt; the others end theirs.
    report: all its failures of this attempt, once it has no rank left.
    stop: what a person asked this host for.
    decision: node 0's, of the attempt before or of this one.
    leaving: this host has read what it needed.
    ended_well: its ranks of this attempt that ended by themselves, with status 0.
    calls: the last collectives of those that it ended, as far as they are known.
    """

    attempt: int = -1
    failing: bool = False
    report: tuple[Failure, ...] | None = None
    stop: Stop | None = None
    decision: Decision | None = None
    leaving: bool = False
    ended_well: tuple[int, ...] = ()
    calls: tuple[tuple[int, Calls], ...] = ()

    def brief(self) -> Notice:
        """The same in fewer words: where ranks printed too much for one frame."""
        report = self.report
        if report is not None:
            report = tuple(
                replace(one, what=one.what[:_BRIEF_CHARACTERS], traceback=None, last_lines=())
                for one in report
            )
        return replace(self, report=report, calls=())

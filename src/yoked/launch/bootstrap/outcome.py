"""What ended an attempt: the records of a failure, and the rule that picks the first cause.

When a rank dies its peers fail too, often sooner than the word of the first death arrives. What
is the cause and what is only its echo is decided here, from what all hosts report. Standard
library only: whoever reads outcome.json needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from yoked.core.schema import Constraint
from yoked.diagnosis.calls import Calls, mismatch_of
from yoked.diagnosis.cause import SAME_CALLS, SAME_STEPS
from yoked.errors import MeetingError

Status = Literal["finished", "failed", "stopped", "interrupted"]
Stop = Literal["interrupted", "stopped"]

# A clock may be wrong, but not by 30,000 years.
Moment = Annotated[float, Constraint("a time", lambda time_s: abs(time_s) < 1e12)]

STERNEST_FIRST: tuple[Stop, ...] = ("stopped", "interrupted")
# As a shell has it for a command that a signal ended: 128 and the number of the signal.
EXIT_CODES: Mapping[Status, int] = {
    "finished": 0,
    "failed": 1,
    "interrupted": 130,
    "stopped": 143,
}
# The kind of a failure in which not a rank, but the host program is gone.
HOST_LOST = "HostVanished"
# The kind of what is no failure by itself: a rank that ended well, while others waited for it; and
# one that was ended as another one failed.
ENDED_EARLY = "EndedEarly"
WAS_ENDED = "WasEnded"
# The kind of a failure before which the ranks had not met: nothing had begun.
NOT_MET = MeetingError.__name__

# What a rank says when it lost another: in the words of Gloo, NCCL, torch's store and yoked.
_PEER_GONE = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Application timeout caused pair closure",
    "Broken pipe",
    "a peer was lost in",
    "DistNetworkError",
    "DistStoreError",
    "failed to recv, got 0 bytes",
    "ncclRemoteError",
    "remote process exited",
    "NCCL watchdog",
)
# Of connections that a program holds itself, by Python and requests: torch raises none of these. It
# may be a server of rows that is gone, and then it is no echo.
_OWN_CONNECTION = (
    *("BrokenPipeError", "ConnectionAbortedError", "ConnectionError", "ConnectionResetError"),
    *("ChunkedEncodingError", "ProtocolError"),
)
# How a rank ends that was asked to; these say nothing of their own.
_OBEYED_KINDS = (None, "KeyboardInterrupt", "SystemExit")
_OBEYED_SIGNALS = ("SIGINT", "SIGTERM")
# What another attempt changes nothing about. It takes the same steps over the same rows from the
# last checkpoint, so a loss that is not finite comes at the same step; a bit that flips in one
# host's memory could be the cause too, and that host is for a person to look at.
_COME_AGAIN = (
    "collective-mismatch",
    "data-ran-out",
    "disk-full",
    "gpu-missing",
    "loss-not-finite",
    "module-missing",
    "rank-ended-early",
)
_WRONG_PROGRAM = ("SyntaxError", "NameError", "ImportError", "ModuleNotFoundError", "UsageError")


@dataclass(frozen=True)
class Failure:
    """How a rank, or a whole host program, ended before its time.

    rank, pid: None where the host program itself failed; rank also where any of several may have.
    exit_code, signal: one of them for a rank that ended; signal is a name such as SIGKILL.
    kind: class of the exception, HOST_LOST, or None where nothing was raised.
    cause: its code, as in docs/reference/causes.md.
    found: by the diagnosis of a run that had not ended, and not by an end.
    what: one or two sentences that do not name the place; `headline` does.
    at: the line of the program, such as train.py:41 in main. calls: its last collectives.
    hosts: all that may be to blame, `host` the first: a link has two; empty: `host` alone.
    time_s: seconds since the epoch by that host's own clock.
    """

    host: str
    node: int
    what: str
    time_s: Moment
    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    kind: str | None = None
    cause: str | None = None
    found: bool = False
    at: str | None = None
    calls: Calls | None = None
    hosts: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    traceback: str | None = None
    last_lines: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str | None, int, int | None]:
        """What is the same of it each time that it is found: cause, node and rank."""
        return self.cause, self.node, self.rank

    @property
    def before_meeting(self) -> bool:
        """Whether the ranks had not all met, so that the program had done nothing together."""
        return self.kind == NOT_MET

    @property
    def headline(self) -> str:
        """Where and what, in one line or two."""
        where = self.host if self.rank is None else f"rank {self.rank} on {self.host}"
        return f"{where}: {self.what}"


@dataclass(frozen=True)
class Decision:
    """What all hosts make of an attempt. again: another one follows."""

    attempt: int
    status: Status
    failure: Failure | None
    again: bool


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks. Times are seconds since the epoch by the host's own clock."""

    attempt: int
    started_s: Moment
    ended_s: Moment
    failure: Failure | None


@dataclass(frozen=True)
class RunOutcome:
    """outcome.json: how the host program ended; the same verdict on all hosts that could talk."""

    status: Status
    attempts: tuple[Attempt, ...]

    @property
    def exit_code(self) -> int:
        """The exit status of the host program."""
        return EXIT_CODES[self.status]

    @property
    def failure(self) -> Failure | None:
        """The first cause in the last attempt."""
        return self.attempts[-1].failure if self.attempts else None

    def to_dict(self) -> dict[str, Any]:
        """The content of outcome.json: status, exit_code, attempts."""
        return {**asdict(self), "exit_code": self.exit_code}


def first_cause(failures: Iterable[Failure]) -> Failure | None:
    """The failure that the others follow from; None of none.

    A signal that we did not send comes before a host program that is gone, that before a rank's
    own error, and that before the complaint about a lost peer. Times only part equals: the
    clocks of two hosts may differ by more than failures do. Where several tell of one rank, the
    words of the rank itself count, then those of others, then a bare exit status.
    """
    known = list(failures)
    first = min(known, key=lambda one: (_echo(one), one.time_s, one.node), default=None)
    if first is None or first.found:
        return first
    if _speaks_of_a_peer(first):
        return _mismatched(known)
    of_it = [one for one in known if (one.node, one.rank) == (first.node, first.rank)]
    return min(of_it, key=lambda one: (_echo(one), one.kind is None, one.pid is None))


def _mismatched(failures: Sequence[Failure]) -> Failure:
    """Of ranks that all lost a peer: the one whose collective fits no other's, else the first.

    Gloo ends a rank by SIGABRT that is sent more than its call has room for; the others lose it.
    """
    calls = {one.rank: one.calls for one in failures if one.rank is not None and one.calls}
    aborted = [
        one.rank
        for one in failures
        if one.rank is not None and one.cause == "collective-mismatch" and one.calls is None
    ]
    found = mismatch_of(calls, aborted)
    first = min(failures, key=lambda one: (_echo(one), one.time_s, one.node))
    if found is None:
        return first
    odd = next((one for one in failures if one.rank == found.ranks[0]), first)
    return replace(
        odd,
        cause="collective-mismatch",
        what=found.words,
        signal=None,
        kind=None,
        fix=(SAME_CALLS,),
    )


def _echo(failure: Failure) -> int:
    """How likely a failure is the echo of another; 0 is least."""
    if failure.found:
        # It was found while all ranks lived: what ended later follows from it.
        return -1
    if failure.kind == HOST_LOST:
        return 1
    # torch ends a process by SIGABRT when a thread of its own meets a lost peer.
    if failure.signal not in (None, "SIGABRT"):
        return 0
    if failure.kind == WAS_ENDED:
        return 6
    if _speaks_of_a_peer(failure):
        return 4 if failure.kind in _OWN_CONNECTION else 5
    if failure.kind == ENDED_EARLY:
        return 3
    return 0 if failure.signal else 2


def _speaks_of_a_peer(failure: Failure) -> bool:
    said = [failure.kind or "", failure.what]
    # A program that catches the error and exits, or aborts, has only printed it.
    if failure.kind in (None, "SystemExit"):
        said += failure.last_lines
    return any(words in line for line in said for words in _PEER_GONE)


def ended_early(host: str, node: int, rank: int, time_s: float) -> Failure:
    """What there is to say of a rank that ended well before the others.

    It is a cause only where the others complain of a lost peer and of nothing else.
    """
    return Failure(
        host=host,
        node=node,
        rank=rank,
        kind=ENDED_EARLY,
        cause="rank-ended-early",
        exit_code=0,
        what="ended with status 0 while the others went on: its data ran out sooner, or it left "
        "out a collective",
        fix=(SAME_STEPS,),
        time_s=time_s,
    )


def was_ended(host: str, node: int, rank: int, calls: Calls, time_s: float) -> Failure:
    """What there is to say of a rank that was ended as another one failed.

    It is a cause only where its collectives fit no other rank's.
    """
    return Failure(
        host=host,
        node=node,
        rank=rank,
        kind=WAS_ENDED,
        calls=calls,
        what="was ended as another rank failed",
        time_s=time_s,
    )


def comes_again(failure: Failure, before: Failure | None) -> bool:
    """Whether another attempt would fail in the same way. before: how the last one failed."""
    if failure.cause in _COME_AGAIN or failure.kind in _WRONG_PROGRAM:
        return True
    if before is None:
        return False
    if failure.cause == "weights-apart":
        # A flipped bit is gone once all ranks begin again with rank 0's last checkpoint. A memory
        # that is bad, or a bug, parts them again.
        return before.cause == failure.cause
    same = (failure.kind, failure.at) == (before.kind, before.at)
    raised = failure.cause in ("exception", "file-missing")
    return same and raised and failure.at is not None


def obeyed(failure: Failure) -> bool:
    """Whether a rank that was asked to end only did so."""
    if failure.signal is not None:
        return failure.signal in _OBEYED_SIGNALS
    return failure.kind in _OBEYED_KINDS or _speaks_of_a_peer(failure)

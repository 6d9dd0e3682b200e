"""Why this run stands, as this host can tell: looks, hears the others' looks, and says a cause.

Every host does so by itself, so that what it finds is there without a controller, and without
node 0.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from yoked.agent.jobfolder import TIMELINE_NAME, TRACE_ASKED, JobFolder
from yoked.core.fs import read_json, write_bytes
from yoked.core.schema import Constraint, decode
from yoked.diagnosis.alone import CODE, Alone, alone, words_of_alone
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.gate import Busy, Shares, busy_ranks, shares_of
from yoked.diagnosis.history import Place, RunHistory
from yoked.diagnosis.memory import MemoryTrend
from yoked.diagnosis.nccl import NcclNetwork, network_of
from yoked.diagnosis.pace import pace_now
from yoked.diagnosis.replay import seen_of
from yoked.diagnosis.rules import causes
from yoked.diagnosis.slow import slow_hosts
from yoked.diagnosis.timeline import Timeline
from yoked.diagnosis.vitals import Ended, Vitals
from yoked.diagnosis.words import words_of
from yoked.errors import YokedError
from yoked.journal import Journal
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.look import Looker, learning_of
from yoked.launch.bootstrap.outcome import Failure
from yoked.launch.bootstrap.spawn import LocalRanks

PERIOD_S = 0.5
# So often it is said where the ranks' time goes.
_SHARES_S = 5.0
# What this host tells of the run, for whoever asks.
DIAGNOSIS_NAME = "diagnosis.json"
# What it has that from: yoked.diagnosis.replay.Seen.
SEEN_NAME = "seen.json.gz"
# Lines that wait in memory while the disk takes none; later ones are lost.
_MOST_WAITING = 1000
# NCCL tells its network when ranks first meet.
_HEAD_BYTES = 256 << 10


@dataclass(frozen=True)
class Told:
    """Another node has looked at its ranks."""

    node: int
    vitals: Vitals


# As a word to a rank has room for.
_Short = Annotated[int, Constraint("1 to 65,535", lambda count: 0 < count < 1 << 16)]


@dataclass(frozen=True)
class TraceWish:
    """Somebody wants to know what ranks do for so many steps, but no longer than that."""

    steps: _Short
    limit_s: _Short


class Watch:
    """This host's part of the diagnosis. Times are seconds of a clock that is never set."""

    def __init__(self, job: Job, generation: int) -> None:
        self._job = job
        self._generation = generation
        self._looker = Looker(job, generation)
        self._hosts = [node.host for node in job.nodes]
        ranks = zip(self._hosts, job.ranks_by_node, strict=True)
        self._history = RunHistory([Place(h, tuple(r)) for h, r in ranks], job.node_rank)
        self._due_s = 0.0
        self._shares_due_s = 0.0
        self._shares: Shares | None = None
        self._use: Mapping[str, Any] = {"links": [], "memory": []}
        self._said: object = None
        self._kept: tuple[str, str] | None = None
        self._alone: Alone | None = None
        self._gave_up = False
        self._network: NcclNetwork | None = None
        self._network_sought: tuple[str, int | None] | None = None
        self._timeline = Timeline(generation)
        # Lines of the journal that are not written yet.
        self._waiting: list[Mapping[str, Any]] = [
            self._timeline.begin(job.launch_id, job.node.host, time.time())
        ]
        self._looked_s = 0.0
        # When the ranks of this host had ended; None: they have not.
        self._ranks_over_s: float | None = None
        self.causes: list[Cause] = []

    def take(self, told: Told, now_s: float) -> None:
        """Another host's look came; one of an earlier attempt may be late."""
        if told.vitals.attempt != self._generation:
            return
        self._history.take(told.node, told.vitals, now_s)

    def turn(self, ranks: LocalRanks, now_s: float, *, last: bool = False) -> Vitals | None:
        """Look, if it is time to, and judge; returns what was seen, for the other hosts.

        last: the ranks have ended, and it is time for a look at what they left.
        """
        if now_s < self._due_s and not last:
            return None
        if self._gave_up:
            self._due_s = now_s + PERIOD_S
            return self._looker.nothing()
        # Only now: it takes a tenth of a second, and a rank that was freed since needs the core.
        self._keep()
        self._due_s = now_s + PERIOD_S
        if last and self._ranks_over_s is None:
            self._ranks_over_s = now_s
        pids, over = ranks.processes, ranks.through
        ended = [
            Ended(
                rank,
                code,
                max(0.0, time.time() - at_s),
                learning_of(self._job.record_file(self._generation, rank)),
            )
            for rank, (code, at_s) in over.items()
        ]
        # A process takes seconds to go; what its recorder wrote last is of before.
        pids = {rank: pid for rank, pid in pids.items() if rank not in over}
        files = {rank: self._job.record_file(self._generation, rank) for rank in pids}
        own = self._job.node_rank
        slow = own in slow_hosts(self._history, self.causes)
        seen = self._looker.look(pids, files, ended, slow=slow)
        self._history.take(own, seen, now_s)
        self._history.tick(now_s)
        self.causes = causes(self._history)
        shares: Shares | None = None
        if now_s >= self._shares_due_s:
            self._shares_due_s = now_s + _SHARES_S
            shares = shares_of(self._history)
            # While it evaluates or saves, what was before goes on to hold.
            self._shares = shares or self._shares
            self._use = _use_of(self._history)
        self._alone = alone(self._history.learning)
        self._looked_s = now_s
        self._write(shares)
        return seen

    def give_up(self) -> None:
        """Judge no more, as that has failed. The other hosts go on to hear that this one is there:
        a host of which nothing comes is asleep, and that would end the run.
        """
        self._gave_up = True
        self.causes, self._alone, self._shares = [], None, None
        # What was told last holds no more.
        with contextlib.suppress(OSError):
            self._tell([], [])
        self._note([], None)

    def hold(self) -> None:
        """The ranks are being ended: what is wrong with them now goes with them."""
        self._timeline.hold()

    def end(self, *, finished: bool, failure: Failure | None = None) -> None:
        """The run is over on all hosts: say what is known only now.

        finished: it ended well. failure: what ended it, as all hosts agreed.
        """
        if not self._gave_up:
            self._alone = alone(self._history.learning, finished=finished)
            self._write()
            self._keep()
        self._append(
            self._timeline.end(
                finished=finished,
                now_s=self._looked_s,
                time_s=time.time(),
                ranks_over_s=self._ranks_over_s,
                failure=None if failure is None else _ended_by(failure),
            )
        )

    @property
    def failure(self) -> Failure | None:
        """The root of what is sure, as what ends the run; None: nothing is sure."""
        root = self.causes[0] if self.causes else None
        if root is None or root.certainty != "sure":
            return None
        words = words_of(root, self._hosts)
        return Failure(
            host=self._hosts[root.nodes[0]],
            hosts=tuple(self._hosts[node] for node in root.nodes),
            node=root.nodes[0],
            rank=root.rank,
            cause=root.code,
            found=True,
            what=words.what,
            # A rank that ends with the run need not be continued.
            fix=() if root.code == "rank-stopped" else words.fix,
            time_s=time.time(),
        )

    @property
    def warning(self) -> str | None:
        """What is wrong with a run that ends well, in a sentence; None: nothing."""
        return next((warning["what"] for warning in self._warnings()), None)

    def memory_of(self, rank: int) -> MemoryTrend | None:
        """How the memory of a rank went; None: nothing is known of it."""
        return self._history.ranks[rank].memory.trend

    def is_asked(self, wish: str) -> bool:
        """Whether somebody left a wish of that name in the job's folder; it is heard once."""
        try:
            (self._job.folder / wish).unlink()
        except OSError:
            return False
        return True

    @property
    def wanted_trace(self) -> TraceWish | None:
        """What somebody wants to know of the next steps, once; None: nobody does."""
        wish = read_json(self._job.folder / TRACE_ASKED)
        if wish is None or not self.is_asked(TRACE_ASKED):
            return None
        # Of another yoked's agent.
        with contextlib.suppress(ValueError):
            found: TraceWish = decode(TraceWish, wish)
            return found
        return None

    def _write(self, shares: Shares | None = None) -> None:
        """Write what is known now, where it has changed. shares: None: none are new."""
        said = [_said(cause, self._hosts) for cause in self.causes]
        self._note(said, shares)
        busy = list(busy_ranks(self._history))
        # Not for each second that goes by.
        doing = [(each.rank, each.doing, each.at) for each in busy]
        new = (said, self._shares, doing, self._alone)
        if new == self._said:
            return
        self._said = new
        # A full disk must not end the run.
        with contextlib.suppress(OSError):
            self._tell(said, busy)

    def _tell(self, said: Sequence[Mapping[str, Any]], busy: Sequence[Busy]) -> None:
        content = {
            "attempt": self._generation,
            "time_s": time.time(),
            "causes": said,
            "warnings": self._warnings(),
            "shares": self._shares and asdict(self._shares),
            "busy": [asdict(each) for each in busy],
            **self._use,
            "nccl": self._nccl((said[0]["cause"], said[0]["rank"])) if said else None,
        }
        JobFolder(self._job.folder).write(DIAGNOSIS_NAME, content)

    def _note(self, said: Sequence[Mapping[str, Any]], shares: Shares | None) -> None:
        """Add what is new to the journal."""
        kept_bytes = 0
        with contextlib.suppress(OSError):
            kept_bytes = (self._job.folder / TIMELINE_NAME).stat().st_size
        self._append(
            self._timeline.look(
                said,
                self._warnings(),
                shares,
                now_s=self._looked_s,
                time_s=time.time(),
                kept_bytes=kept_bytes,
            )
        )

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        room = _MOST_WAITING - len(self._waiting)
        self._waiting += lines[:room]
        if not self._waiting:
            return
        # A full disk must not end the run. Lines are too few to keep the file open for them.
        path = self._job.folder / TIMELINE_NAME
        with contextlib.suppress(OSError, YokedError), Journal(path) as journal:
            while self._waiting:
                journal.append(self._waiting[0])
                self._waiting.pop(0)

    def _warnings(self) -> list[dict[str, Any]]:
        """What is wrong with a run that gets on, in the form of a cause."""
        if self._alone is None:
            return []
        words = words_of_alone(self._alone, [host.place for host in self._history.hosts])
        nodes = sorted({self._history.node_of(rank) for rank in self._alone.ranks})
        return [
            {
                "cause": CODE,
                "hosts": [self._hosts[node] for node in nodes],
                "rank": None,
                "certainty": "sure",
                "what": words.what,
                "fix": list(words.fix),
            }
        ]

    def _nccl(self, root: tuple[str, int | None]) -> dict[str, Any] | None:
        """The network that NCCL chose here, where its ranks print it. root: what is told now."""
        if self._network is None and root != self._network_sought:
            # Ranks print it when they first meet: at an earlier cause they may not have.
            self._network, self._network_sought = network_of(self._first_lines()), root
        if self._network is None:
            return None
        # As yoked told the ranks.
        planned = os.environ.get("GLOO_SOCKET_IFNAME", "")
        return {
            "what": self._network.words(planned),
            "as_planned": self._network.is_on(planned),
        }

    def _first_lines(self) -> Iterator[str]:
        for rank in self._job.local_ranks:
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    path = self._job.log_file(self._generation, rank, stream)
                    with path.open("rb") as file:
                        yield from file.read(_HEAD_BYTES).decode(errors="replace").splitlines()

    def _keep(self) -> None:
        """Keep what was seen when a verdict has changed, so that it can be judged again."""
        root = (self.causes[0].code, self.causes[0].certainty) if self.causes else None
        if root is None or root == self._kept:
            return
        self._kept = root
        text = json.dumps(seen_of(self._history), separators=(",", ":"))
        packed = gzip.compress(text.encode(), compresslevel=1)
        # A full disk must not end the run.
        with contextlib.suppress(OSError):
            write_bytes(self._job.folder / SEEN_NAME, packed, durable=False)


def _use_of(history: RunHistory) -> dict[str, Any]:
    """What the ranks take of the links and of the hosts' memory, as all hosts told last."""
    links = pace_now(history).links
    return {
        "links": [
            {
                "sender": sender,
                "receiver": receiver,
                "bytes_per_s": round(pace.bytes_per_s),
                "lost": round(pace.lost, 4),
                "rtt_s": round(pace.rtt_s, 6),
            }
            for (sender, receiver), pace in sorted(links.items())
        ],
        "memory": [
            {"rank": rank.rank, "bytes": rank.memory_bytes}
            for _, rank in history.alive()
            if rank.memory_bytes
        ],
    }


def _ended_by(failure: Failure) -> dict[str, Any]:
    """What ended an attempt, in the form of a cause."""
    return {
        "cause": failure.cause,
        "hosts": list(failure.hosts or (failure.host,)),
        "rank": failure.rank,
        "what": failure.what,
    }


def _said(cause: Cause, hosts: Sequence[str]) -> dict[str, Any]:
    """A cause as another program reads it."""
    words = words_of(cause, hosts)
    return {
        "cause": cause.code,
        "hosts": [hosts[node] for node in cause.nodes],
        "rank": cause.rank,
        "certainty": cause.certainty,
        "since_s": round(cause.since_s, 2),
        "what": words.what,
        "fix": list(words.fix),
    }

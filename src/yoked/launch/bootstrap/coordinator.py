"""What one host of a run makes of what it sees and hears: events in, commands out.

Every host has one. When a rank dies anywhere, each host ends its ranks and says what it saw. Node 0
then decides what the first cause was, and whether a new generation of ranks follows; without
node 0, each host decides from what it knows.

No clock, thread, socket or torch: whoever drives it tells the time with each event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from yoked.diagnosis.calls import Calls
from yoked.errors import HostError
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.notice import CONNECT_S, Notice
from yoked.launch.bootstrap.outcome import (
    HOST_LOST,
    STERNEST_FIRST,
    Attempt,
    Decision,
    Failure,
    RunOutcome,
    Stop,
    comes_again,
    ended_early,
    first_cause,
    obeyed,
    was_ended,
)

# Notices are renewed five times a second. In a run that is ending anyway, this is silence.
SILENT_S = 3.0
# A host that has been told of a failure needs GRACE_S for its ranks, and then reports.
REPORT_S = 6.0
# Ranks that were asked to save may take this long after the first of them has ended otherwise.
SAVING_S = 30.0
# How long others are waited for that may not have heard how it ended, or that it shall end.
FAREWELL_S = 5.0


@dataclass(frozen=True)
class Joined:
    """This host can be heard by the others, and its ranks can meet theirs."""


@dataclass(frozen=True)
class CutOff:
    """Nothing can be heard from any host any more, or could not from the start."""

    problem: HostError


@dataclass(frozen=True)
class Beat:
    """Another node said something, be it what it said before."""

    node: int
    notice: Notice


@dataclass(frozen=True)
class Left:
    """The connection of another node ended."""

    node: int


@dataclass(frozen=True)
class HostFailed:
    """A controller saw that another host is over, before all have come."""

    failure: Failure


@dataclass(frozen=True)
class RankFailed:
    """A rank of this host ended by itself, and not well."""

    generation: int


@dataclass(frozen=True)
class HeldUp:
    """The ranks of this generation do not get on, for a reason that is sure."""

    generation: int
    failure: Failure


@dataclass(frozen=True)
class RanksOver:
    """No rank of this host is left. failures: of those that were not ended by us. ended_well: ranks
    that ended by themselves, with status 0. calls: the last collectives of those that we ended.
    """

    generation: int
    failures: tuple[Failure, ...]
    ended_well: tuple[int, ...] = ()
    calls: tuple[tuple[int, Calls], ...] = ()


@dataclass(frozen=True)
class StopAsked:
    """A person asked this host for it."""

    stop: Stop


@dataclass(frozen=True)
class StartGeneration:
    """Start this host's ranks. restarts: generations before this one whose ranks had met."""

    number: int
    restarts: int


@dataclass(frozen=True)
class Interrupt:
    """Ask this host's ranks to save and end."""


@dataclass(frozen=True)
class EndRanks:
    """End this host's ranks, whether they obey or not."""


@dataclass(frozen=True)
class EndGeneration:
    """All hosts are through with a generation, and this came of it."""

    decision: Decision


@dataclass(frozen=True)
class Finish:
    """The run is over on this host. Nothing follows."""

    outcome: RunOutcome


Event = Joined | CutOff | Beat | Left | HostFailed | RankFailed | HeldUp | RanksOver | StopAsked
Command = StartGeneration | Interrupt | EndRanks | EndGeneration | Finish


@dataclass
class _Other:
    """What another node said last, and when."""

    notice: Notice
    heard_s: float


@dataclass
class _Generation:
    """One start of all ranks, as this host goes through it."""

    number: int
    began_s: float
    ended: bool = False
    interrupted: bool = False
    # A person wants no ranks: who is absent has not failed.
    called_off: bool = False
    failing_since_s: float | None = None
    held_up: Failure | None = None
    reports_by_s: float = math.inf


class Coordinator:
    """This host's decisions. `notice`: what it has to say to the others, after each event.

    now_s: seconds since the epoch, by a clock that is never set.
    """

    def __init__(self, job: Job, now_s: float) -> None:
        self._job = job
        self._other_nodes = [node for node in range(len(job.nodes)) if node != job.node_rank]
        self._now_s = now_s
        self._joined = False
        self._trouble: HostError | None = None
        self._told: Failure | None = None
        self._others: dict[int, _Other] = {}
        self._asked_s: float | None = None
        self._generation = _Generation(0, now_s)
        self._attempts: list[Attempt] = []
        self._outcome: RunOutcome | None = None
        self._step = self._gather
        self.notice = Notice()

    @property
    def awaited(self) -> list[int]:
        """The nodes that have not come yet."""
        return [node for node in self._other_nodes if node not in self._others]

    def on(self, event: Event | None, now_s: float) -> list[Command]:
        """What is to be done, in this order. None: only time has passed."""
        self._now_s = now_s
        if event is not None:
            self._take_in(event)
        commands: list[Command] = []
        while True:
            step = self._step
            commands += step()
            if self._step == step:
                return commands

    def _take_in(self, event: Event) -> None:
        if isinstance(event, Beat):
            self._others[event.node] = _Other(event.notice, self._now_s)
        elif isinstance(event, Left):
            if event.node in self._others:
                self._others[event.node].heard_s = -math.inf
        elif isinstance(event, Joined):
            self._joined = True
        elif isinstance(event, CutOff):
            self._trouble = event.problem
        elif isinstance(event, HostFailed):
            self._told = event.failure
        elif isinstance(event, StopAsked):
            self._asked_s = self._asked_s or self._now_s
            self._say(stop=event.stop)
        elif self._step == self._run and event.generation == self._generation.number:
            self._take_in_ranks(event)

    def _take_in_ranks(self, event: RankFailed | HeldUp | RanksOver) -> None:
        if isinstance(event, RankFailed):
            self._say(failing=True)
        elif isinstance(event, HeldUp):
            self._generation.held_up = self._generation.held_up or event.failure
            self._say(failing=True)
        else:
            held_up = self._generation.held_up
            failures = event.failures if held_up is None else (held_up, *event.failures)
            self._say(
                report=failures,
                failing=bool(failures),
                ended_well=event.ended_well,
                calls=event.calls,
            )

    def _say(self, **changes: Any) -> None:
        self.notice = replace(self.notice, **changes)

    # The steps of a generation, in their order. Each returns what is to be done now.

    def _gather(self) -> list[Command]:
        """Wait until this host hears all others: ranks that fail sooner would fail unheard."""
        one, stop = self._generation, self._stop
        late = self._asked_s is not None and self._now_s - self._asked_s > FAREWELL_S
        one.called_off = stop is not None
        if self._joined:
            self._say(attempt=one.number, failing=False, report=None, ended_well=(), calls=())
            if stop is not None or self._must_end():
                # There is no rank yet, and whoever comes later must not start one.
                self._say(report=())
                gone = tuple(self._gone())
                self._say(report=gone, failing=bool(gone))
                self._expect_reports()
                self._step = self._agree
            elif not self.awaited:
                self._step = self._run
                return [StartGeneration(one.number, one.number - self._unmet)]
        elif self._trouble is not None or self._told is not None or late:
            # The others may not have heard of a wish to stop, and would wait for this host.
            return self._conclude(self._decide())
        return []

    def _run(self) -> list[Command]:
        """Wait for the end of this host's ranks, or bring it about."""
        one = self._generation
        if self.notice.report is not None or self._now_s > one.reports_by_s:
            self._step = self._agree
            return []
        if self._must_end():
            self._expect_reports()
            ended, one.ended = one.ended, True
            return [] if ended else [EndRanks()]
        asked, one.interrupted = one.interrupted, self._stop == "interrupted"
        return [Interrupt()] if one.interrupted and not asked else []

    def _agree(self) -> list[Command]:
        """Wait for the decision of node 0, which it makes once it has heard from all."""
        if self._must_end():
            self._expect_reports()
        decision = self._others[0].notice.decision if 0 in self._others else None
        if decision is not None and decision.attempt >= self._generation.number:
            return self._conclude(decision)
        decides = self._job.node_rank == 0 and self._settled
        overdue = self._now_s > self._generation.reports_by_s
        if decides or overdue or self._trouble is not None:
            decision = self._decide()
            self._say(decision=decision)
            return self._conclude(decision)
        return []

    def _conclude(self, decision: Decision) -> list[Command]:
        one = self._generation
        self._attempts.append(Attempt(one.number, one.began_s, self._now_s, decision.failure))
        if decision.again:
            self._generation = _Generation(one.number + 1, self._now_s)
            self._step = self._gather
        else:
            self._outcome = RunOutcome(decision.status, tuple(self._attempts))
            self._say(leaving=True)
            self._step = self._take_leave
        return [EndGeneration(decision)]

    def _take_leave(self) -> list[Command]:
        """Let the others read what was decided: they read it from node 0."""
        listen = any(
            not self._silent(node, SILENT_S) and not self._others[node].notice.leaving
            for node in self._other_nodes
        )
        over_s = self._now_s - self._attempts[-1].ended_s
        if self._job.node_rank == 0 and listen and over_s < FAREWELL_S:
            return []
        self._step = self._rest
        assert self._outcome is not None
        return [Finish(self._outcome)]

    def _rest(self) -> list[Command]:
        return []

    # What follows from what was heard.

    @property
    def _stop(self) -> Stop | None:
        """What was asked for on any host; the sterner wish counts."""
        wishes = {self.notice.stop, *(other.notice.stop for other in self._others.values())}
        return next((wish for wish in STERNEST_FIRST if wish in wishes), None)

    @property
    def _notices(self) -> dict[int, Notice]:
        """What each host said last, by node."""
        others = {node: other.notice for node, other in self._others.items()}
        return {**others, self._job.node_rank: self.notice}

    @property
    def _reports(self) -> dict[int, tuple[Failure, ...]]:
        """The reports of this generation by node."""
        return {
            node: notice.report
            for node, notice in self._notices.items()
            if notice.attempt == self._generation.number and notice.report is not None
        }

    @property
    def _all_reported(self) -> bool:
        """Whether no host has a rank left."""
        return len(self._reports) == len(self._job.nodes)

    @property
    def _settled(self) -> bool:
        """Whether no more can be heard: those that have not reported, but should, are silent."""
        missing = [node for node in self._other_nodes if node not in self._reports]
        return not missing or (
            math.isfinite(self._generation.reports_by_s)
            and all(self._silent(node, SILENT_S) for node in missing)
        )

    def _must_end(self) -> bool:
        """Whether no rank of the run can go on."""
        one, stop = self._generation, self._stop
        if stop == "stopped" or self._trouble is not None or self._host_lost():
            return True
        if self._told is not None:
            return True
        notices = [self.notice, *(other.notice for other in self._others.values())]
        if not any(notice.failing for notice in notices if notice.attempt == one.number):
            return False
        if one.failing_since_s is None:
            one.failing_since_s = self._now_s
        return stop is None or self._now_s - one.failing_since_s > SAVING_S

    def _host_lost(self) -> bool:
        """Whether a host has been silent too long, or has not come at all."""
        late = self._now_s - self._generation.began_s > CONNECT_S
        return any(
            self._silent(node, self._job.silence_s)
            for node in self._other_nodes
            if late or node in self._others
        )

    def _silent(self, node: int, limit_s: float) -> bool:
        return node not in self._others or self._now_s - self._others[node].heard_s > limit_s

    def _expect_reports(self) -> None:
        """From now on the hosts have REPORT_S to end their ranks and report."""
        # Node 0 hears the reports; the others then hear of its decision.
        limit_s = REPORT_S + (SILENT_S if self._job.node_rank else 0)
        one = self._generation
        one.reports_by_s = min(one.reports_by_s, self._now_s + limit_s)

    # The decision.

    def _decide(self) -> Decision:
        """What this host makes of a generation with what it has heard."""
        number, stop = self._generation.number, self._stop
        failures = [failure for report in self._reports.values() for failure in report]
        failures += self._gone()
        if stop is not None:
            # Ranks that end as they were asked to are no failure; one that met a trouble of its
            # own, such as a full disk while it saved, is told of.
            own = first_cause(failure for failure in failures if not obeyed(failure))
            return Decision(number, stop, own, again=False)
        if failures:
            failures += self._beside()
        cause = first_cause(failures)
        if cause is None:
            return Decision(number, "finished", None, again=False)
        return Decision(number, "failed", cause, again=self._may_repeat(cause))

    def _beside(self) -> list[Failure]:
        """The ranks of all hosts that ended well in this generation, or were ended."""
        found = []
        for node, notice in self._notices.items():
            if notice.attempt == self._generation.number:
                place = (self._job.nodes[node].host, node)
                found += [ended_early(*place, rank, self._now_s) for rank in notice.ended_well]
                found += [was_ended(*place, *known, self._now_s) for known in notice.calls]
        return found

    def _may_repeat(self, cause: Failure) -> bool:
        """Whether another generation follows: node 0 alone may say so, with every host there.

        The first meeting of the ranks that failed is repeated without asking: a stranger on the
        network can make one fail.
        """
        if self._job.node_rank or not self._all_reported or self._trouble is not None:
            return False
        if comes_again(cause, self._attempts[-1].failure if self._attempts else None):
            return False
        if cause.before_meeting and self._unmet == 0:
            return True
        return self._generation.number - min(self._unmet, 1) < self._job.restarts

    @property
    def _unmet(self) -> int:
        """The generations so far whose ranks did not meet."""
        failures = [attempt.failure for attempt in self._attempts]
        return sum(failure is not None and failure.before_meeting for failure in failures)

    def _gone(self) -> list[Failure]:
        """The hosts that fell silent without a report."""
        if self._generation.called_off or self._all_reported:
            return []
        if self._told is not None:
            return [self._told]
        if self._trouble is not None:
            return [self._cut_off(self._trouble)]
        found = [
            self._silence(node)
            for node in self._other_nodes
            if node not in self._reports and self._silent(node, SILENT_S)
        ]
        if not found and self.notice.report is None:
            what = "its ranks did not end, though they were killed"
            found = [replace(self._vanished(self._job.node_rank, what), kind=None)]
        return found

    def _cut_off(self, trouble: HostError) -> Failure:
        if self._joined:
            return replace(self._vanished(0, trouble.what), fix=trouble.fix)
        # Before the first word it may be this host that is cut off, or misconfigured.
        failure = self._vanished(self._job.node_rank, trouble.what)
        return replace(failure, kind=type(trouble).__name__, fix=trouble.fix)

    def _silence(self, node: int) -> Failure:
        if node in self._others:
            silent_s = self._now_s - self._others[node].heard_s
            how = f"no word from it for {silent_s:.0f} s"
            if not math.isfinite(silent_s):
                how = "it closed its connection"
            gone = self._vanished(node, f"its launcher is gone: {how}")
            if math.isfinite(silent_s):
                # It may be the link as well.
                gone = replace(gone, hosts=(gone.host, self._job.node.host))
            return gone
        first, port = self._job.nodes[0], self._job.control_port
        fix = (
            f"a firewall of {first.host} is the usual cause, for port {port}: yoked doctor",
            f"logs/launcher.err on {self._job.nodes[node].host} says more",
        )
        return replace(self._vanished(node, f"its launcher did not reach {first.host}"), fix=fix)

    def _vanished(self, node: int, what: str) -> Failure:
        host = self._job.nodes[node].host
        return Failure(
            host=host,
            node=node,
            kind=HOST_LOST,
            cause="host-gone",
            what=what,
            fix=(f"look at {host}: it was switched off or cut off, or its launcher was killed",),
            time_s=self._now_s,
        )

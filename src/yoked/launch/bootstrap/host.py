"""The host program: one on each host, from the start of a run to its end.

    python -m yoked.launch.bootstrap.host JOB.json

Does what its `Coordinator` decides: starts this host's ranks, generation by generation, ends them,
and tells the other hosts. Nobody else is needed for that: the person's machine may be gone. The
last act is outcome.json in the job folder, a `RunOutcome`.

SIGINT asks the ranks of all hosts to save and stop, a second one or SIGTERM ends them.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from yoked.agent.compiled import kept_for_ranks
from yoked.agent.jobfolder import SAVE_ASKED, STACKS_ASKED
from yoked.core.fs import read_json, write_bytes
from yoked.core.schema import decode
from yoked.errors import YokedError
from yoked.launch.bootstrap.coordinator import (
    Command,
    Coordinator,
    EndGeneration,
    EndRanks,
    Event,
    Finish,
    HeldUp,
    HostFailed,
    Interrupt,
    Joined,
    RankFailed,
    RanksOver,
    StartGeneration,
    StopAsked,
)
from yoked.launch.bootstrap.job import Job, read_job
from yoked.launch.bootstrap.notify import Notifier
from yoked.launch.bootstrap.orphans import Orphans
from yoked.launch.bootstrap.outcome import Attempt, Decision, Failure, RunOutcome, Stop
from yoked.launch.bootstrap.spawn import LocalRanks
from yoked.launch.bootstrap.stage import Stage
from yoked.launch.bootstrap.watch import Told, Watch
from yoked.streams import outlive_full_disk

if TYPE_CHECKING:
    from yoked.launch.bootstrap.control import Control

OUTCOME_NAME = "outcome.json"
# Attempts after which another one began, for whoever looks on: outcome.json comes at the end.
EARLIER_NAME = "earlier.json"
# Of another host, as a controller saw it (agent/jobs.py).
FAILED_NAME = "failed.json"
_POLL_S = 0.2


class Signals:
    """What a person asks of this process becomes an event; the end of a child wakes it up."""

    def __init__(self, acknowledge: Callable[[Stop], None] = lambda _: None) -> None:
        """acknowledge: told at once, in the signal's handler, what was asked."""
        # One of this kind may be put into from a signal handler.
        self.events: queue.SimpleQueue[Event | Told | None] = queue.SimpleQueue()
        self._asked = False
        self._acknowledge = acknowledge
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: self.events.put(None))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        gentle = number == signal.SIGINT and not self._asked
        self._asked = True
        stop: Stop = "interrupted" if gentle else "stopped"
        self.events.put(StopAsked(stop))
        self._acknowledge(stop)


class HostProgram:
    """This host's part of a run."""

    def __init__(
        self, job: Job, signals: Signals, notifier: Notifier, orphans: Orphans | None = None
    ) -> None:
        """orphans: of this process; None: it is not for this job alone."""
        self._job = job
        self._orphans = orphans
        self._notifier = notifier
        self._events = signals.events
        # Seconds since the epoch, by a clock that is never set.
        self._epoch_s = time.time() - time.monotonic()
        self._coordinator = Coordinator(job, self._now_s())
        self._ranks: LocalRanks | None = None
        self._watch: Watch | None = None
        self._stage = Stage(job)
        self._told = False
        # Of this generation, the causes by which it is held up.
        self._held_up = set[object]()
        self._generation = 0
        self._earlier: list[dict[str, Any]] = []
        self._running = False
        self._control: Control | None = None
        if len(job.nodes) == 1:
            self._events.put(Joined())
            return
        # A host alone need not load TLS.
        from yoked.launch.bootstrap.control import Control

        self._control = Control(job, self._events.put)

    def run(self) -> RunOutcome:
        """All generations; returns when this host has no rank left and the others know."""
        outcome: RunOutcome | None = None
        while outcome is None:
            for command in self._coordinator.on(self._next_event(), self._now_s()):
                if isinstance(command, Finish):
                    outcome = command.outcome
                else:
                    self._carry_out(command)
            if self._control is not None:
                self._control.say(self._coordinator.notice)
        if self._control is not None:
            self._control.close()
        return outcome

    def _next_event(self) -> Event | None:
        """What has happened; None: nothing for a while, or a child ended."""
        ranks = self._ranks if self._running else None
        over = ranks is not None and ranks.over
        self._look(last=over)
        try:
            event = self._events.get(timeout=0 if over else _POLL_S)
            while isinstance(event, Told):
                if self._watch is not None:
                    self._watch.take(event, time.monotonic())
                if not over:
                    return None
                # Hosts whose ranks are over look, and tell, as fast as they can.
                event = self._events.get(timeout=0)
            return event
        except queue.Empty:
            if ranks is None or not over:
                return None
        self._running = False
        failures = (
            ranks.failures() if self._watch is None else ranks.failures(self._watch.memory_of)
        )
        return RanksOver(self._generation, failures, ranks.ended_well, ranks.calls)

    def _look(self, *, last: bool = False) -> None:
        """Look at the ranks, if it is time to, and have the other hosts know.

        last: they have just ended.
        """
        if self._ranks is None:
            self._look_for_others()
        if self._watch is None or self._ranks is None:
            return
        if self._watch.is_asked(STACKS_ASKED):
            self._ranks.write_stacks()
        if self._watch.is_asked(SAVE_ASKED):
            self._ranks.save()
        if (wish := self._watch.wanted_trace) is not None:
            self._ranks.trace(wish.steps, wish.limit_s)
        try:
            self._judge(self._watch, self._ranks, last=last)
        except Exception as problem:  # noqa: BLE001 - a bug in the diagnosis must not end the run
            traceback.print_exception(problem)
            self._watch.give_up()

    def _judge(self, watch: Watch, ranks: LocalRanks, *, last: bool) -> None:
        """Look, and end a run that is held up."""
        seen = watch.turn(ranks, time.monotonic(), last=last)
        if seen is None:
            return
        if seen.ranks:
            self._stage.runs(seen)
        if self._control is not None:
            self._control.tell(seen)
        failure = watch.failure
        self._notifier.held_up(failure)
        # A cause stays until the ranks have ended: it is said once.
        if failure is not None and self._job.ends_held_up and failure.key not in self._held_up:
            self._held_up.add(failure.key)
            self._events.put(HeldUp(self._generation, failure))
            watch.hold()
            ranks.free()

    def _look_for_others(self) -> None:
        """Note which hosts have not come yet; hear of one that never will."""
        self._stage.gathers([self._job.nodes[node].host for node in self._coordinator.awaited])
        content = None if self._told else read_json(self._job.folder / FAILED_NAME)
        if content is None:
            return
        self._told = True
        try:
            failure: Failure = decode(Failure, content)
        except ValueError as problem:
            # Node 0 then finds out by itself, though later.
            _say(f"{FAILED_NAME} is not understood: {problem}")
            return
        self._events.put(HostFailed(failure))

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, StartGeneration):
            _say(_introduction(self._job, command.number))
            self._start(command.number, command.restarts)
            return
        if isinstance(command, EndGeneration):
            _say(_summary(command.decision))
            self._note_attempt(command.decision)
            self._end_watch(command.decision)
            if self._control is not None and self._job.node_rank == 0:
                self._control.store_port = None
        if self._ranks is None:
            return
        if isinstance(command, Interrupt):
            self._ranks.interrupt()
        elif isinstance(command, EndRanks):
            if self._watch is not None:
                self._watch.hold()
            self._ranks.end()
        else:
            self._ranks.close()
            if self._orphans is not None and (left := self._orphans.end()):
                _say(f"ended what ranks left behind: {', '.join(map(str, left))}")

    def _note_attempt(self, decision: Decision) -> None:
        """Leave word of what ended an attempt, before the next one begins."""
        if not decision.again or decision.failure is None:
            return
        # Every look at the run has them.
        short = replace(decision.failure, traceback=None, last_lines=(), calls=None)
        self._earlier.append({"attempt": decision.attempt, "failure": asdict(short)})
        content = json.dumps({"attempts": self._earlier}).encode()
        # A full disk costs the word, and not the attempt.
        with contextlib.suppress(OSError):
            write_bytes(self._job.folder / EARLIER_NAME, content, durable=False)

    def _start(self, number: int, restarts: int) -> None:
        self._ranks = LocalRanks(
            self._job,
            number,
            restarts=restarts,
            store_port=None if self._control is None else self._control.store_port,
            on_death=lambda: self._events.put(RankFailed(number)),
        )
        self._generation, self._running = number, True
        self._held_up.clear()
        self._watch = Watch(self._job, number)
        if self._control is not None:
            self._control.store_port = self._ranks.store_port

    def _end_watch(self, decision: Decision) -> None:
        if self._watch is not None:
            try:
                finished = decision.status == "finished"
                self._watch.end(finished=finished, failure=decision.failure)
                self._notifier.warn(self._watch.warning)
            except Exception as problem:  # noqa: BLE001 - as above
                traceback.print_exception(problem)
        self._watch = None

    def _now_s(self) -> float:
        return self._epoch_s + time.monotonic()


def _introduction(job: Job, number: int) -> str:
    first = job.nodes[0]
    hosts, ranks = len(job.nodes), job.world_size
    said = f"attempt {number}: {hosts} host{'s' * (hosts != 1)}, {ranks} rank{'s' * (ranks != 1)}"
    if hosts == 1:
        return said
    return f"{said}, which meet at {first.address} port {job.control_port}"


def _summary(decision: Decision) -> str:
    why = f": {decision.failure.headline}" if decision.failure else ""
    return f"attempt {decision.attempt}: {decision.status}{why}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _bug(job: Job, problem: Exception) -> RunOutcome:
    """The exit of a host program that ended otherwise than it should."""
    now_s = time.time()
    failure = Failure(
        host=job.node.host,
        node=job.node_rank,
        kind=type(problem).__name__,
        what=problem.what if isinstance(problem, YokedError) else repr(problem),
        fix=problem.fix if isinstance(problem, YokedError) else (),
        traceback="".join(traceback.format_exception(problem)),
        time_s=now_s,
    )
    return RunOutcome("failed", (Attempt(0, now_s, now_s, failure),))


def write_exit(job: Job, outcome: RunOutcome) -> None:
    """Write outcome.json such that a reader sees all of it or nothing."""
    write_bytes(job.folder / OUTCOME_NAME, json.dumps(outcome.to_dict()).encode(), durable=False)


def main(argv: list[str]) -> int:
    """Run the job of the file in argv on this host; returns the exit status."""
    signals = Signals()
    try:
        job = read_job(Path(argv[0]))
    except YokedError as problem:
        sys.stderr.write(f"yoked: {problem}\n")
        return problem.exit_status
    notifier = Notifier(job)
    with kept_for_ranks():
        try:
            outcome = HostProgram(job, signals, notifier, Orphans(job.launch_id)).run()
        except Exception as problem:  # noqa: BLE001 - the person reads outcome.json, not this process
            outcome = _bug(job, problem)
            traceback.print_exception(problem)
        try:
            write_exit(job, outcome)
        finally:
            # Where the disk is full, nothing else tells a person who is not looking.
            notifier.ended(outcome)
            notifier.close()
    return outcome.exit_code


if __name__ == "__main__":
    outlive_full_disk()
    status = main(sys.argv[1:])
    sys.exit(status)

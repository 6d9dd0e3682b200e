"""The host program: one on each host, from the start of a run to its end.

    python -m yoked.launch.bootstrap.host JOB.json

Runs this host's ranks under torchrun, attempt by attempt. When a rank dies anywhere, every host
ends its ranks, says what it saw, and node 0 decides what was the first cause and whether to start
anew; without node 0, each host decides from what it knows. Nobody else is needed for that: the
person's machine may be gone. The last act is exit.json in the job folder, a `HostExit`.

SIGINT asks the ranks of all hosts to save and stop, a second one or SIGTERM ends them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from yoked.collector import without_collector
from yoked.core.fs import write_bytes
from yoked.errors import YokedError
from yoked.launch.bootstrap.alone import Alone
from yoked.launch.bootstrap.hearing import Hearing
from yoked.launch.bootstrap.job import Job, read_job
from yoked.launch.bootstrap.spawn import SpawnedRanks
from yoked.launch.bootstrap.verdict import (
    STERNEST_FIRST,
    Attempt,
    Decision,
    Failure,
    HostExit,
    Stop,
    decide,
)
from yoked.streams import outlive_full_disk

if TYPE_CHECKING:
    from yoked.launch.bootstrap.attempt import LocalRanks
    from yoked.launch.bootstrap.control import Control

EXIT_NAME = "exit.json"
_POLL_S = 0.2
_FAREWELL_S = 5.0


class Signals:
    """What a person asked of this process."""

    def __init__(self) -> None:
        self.wish: Stop | None = None
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        again = self.wish is not None
        self.wish = "stopped" if again or number == signal.SIGTERM else "interrupted"


class HostProgram:
    """This host's part of a run."""

    def __init__(self, job: Job, signals: Signals) -> None:
        # torch takes a second to import; a signal must find its handler before.
        self._job = job
        self._signals = signals
        self._attempts: list[Attempt] = []
        self._control: Control | Alone
        if job.file_store:
            self._control = Alone(job)
            return
        with without_collector():
            from yoked.launch.bootstrap.control import Control

            self._control = Control(job)
            # While the hosts connect: node 0 answers only once it has loaded its own.
            _load_torch()

    def run(self) -> HostExit:
        """All attempts; returns when this host has no rank left and the others know."""
        while True:
            number, started_s = len(self._attempts), time.time()
            decision = self._attempt(number)
            self._attempts.append(Attempt(number, started_s, time.time(), decision.failure))
            _say(_summary(decision))
            if not decision.again:
                break
        self._take_leave(number)
        return HostExit(decision.status, tuple(self._attempts))

    def _attempt(self, number: int) -> Decision:
        arrived = self._arrive()
        hearing = Hearing(self._job, self._control, number)
        if not arrived:
            if self._stop is not None:
                hearing.call_off()
            return self._decide_alone(number, hearing)
        self._control.say(attempt=number, failing=False, report=None)
        _say(_introduction(self._job, number))
        self._heed()
        wish = self._stop
        if wish is not None:
            return self._call_off(number, hearing)
        ranks = self._start(number)
        while not ranks.over and not hearing.overdue:
            self._heed(ranks)
            if hearing.must_end(self._stop):
                ranks.end()
                hearing.expect_reports()
            self._control.wait(_POLL_S)
        if ranks.given_up and self._stop is not None:
            hearing.call_off()
        report = ranks.failures()
        self._control.say(report=report, failing=bool(report))
        return self._agree(number, hearing)

    def _start(self, number: int) -> LocalRanks | SpawnedRanks:
        restarts = number - self._unmet

        def on_death() -> None:
            self._control.say(failing=True)

        if isinstance(self._control, Alone):
            return SpawnedRanks(self._job, number, restarts=restarts, on_death=on_death)
        from yoked.launch.bootstrap.attempt import LocalRanks

        port = self._control.store_port
        return LocalRanks(self._job, number, port, restarts=restarts, on_death=on_death)

    @property
    def _unmet(self) -> int:
        """The attempts so far whose ranks did not meet."""
        failures = [attempt.failure for attempt in self._attempts]
        return sum(failure is not None and failure.before_meeting for failure in failures)

    def _call_off(self, number: int, hearing: Hearing) -> Decision:
        """A person wants no run, and this host has no rank yet: there is nothing to save."""
        self._control.say(report=())
        hearing.call_off()
        return self._agree(number, hearing)

    def _arrive(self) -> bool:
        """Wait for the store; False if it cannot be reached, or not soon after a wish to stop.

        The others may not have heard of that wish, and would wait for this host for a minute.
        """
        wished_s: float | None = None
        while not self._control.connected:
            if self._signals.wish is not None:
                wished_s = wished_s or time.monotonic()
            late = wished_s is not None and time.monotonic() - wished_s > _FAREWELL_S
            if self._control.trouble is not None or late:
                return False
            self._control.wait(_POLL_S)
        return True

    def _heed(self, ranks: LocalRanks | SpawnedRanks | None = None) -> None:
        """Pass a wish to stop on, to the other hosts and to the ranks."""
        if self._signals.wish != self._control.notices[self._job.node_rank].stop:
            self._control.say(stop=self._signals.wish)
        if ranks is not None and self._stop == "interrupted":
            ranks.interrupt()

    @property
    def _stop(self) -> Stop | None:
        """What was asked for on any host; the sterner wish counts."""
        wishes = {notice.stop for notice in self._control.notices.values()}
        wishes.add(self._signals.wish)
        for wish in STERNEST_FIRST:
            if wish in wishes:
                return wish
        return None

    def _agree(self, number: int, hearing: Hearing) -> Decision:
        """The decision of node 0, which it makes once it has heard from all."""
        decides = self._job.node_rank == 0
        while not hearing.overdue:
            self._heed()
            if hearing.must_end(self._stop):
                hearing.expect_reports()
            decision = self._control.notices[0].decision if 0 in self._control.notices else None
            if decision is not None and decision.attempt == number:
                return decision
            if decides and hearing.settled:
                break
            if self._control.trouble is not None:
                break
            self._control.wait(_POLL_S)
        decision = self._decide_alone(number, hearing)
        self._control.say(decision=decision)
        if decision.again:
            # The store is cleared before it leaves; ranks that wrote earlier would be lost.
            self._control.wait_until_said(_FAREWELL_S)
        return decision

    def _decide_alone(self, number: int, hearing: Hearing) -> Decision:
        """What this host makes of an attempt with what it has heard."""
        gone = hearing.gone()
        reports = [failure for report in hearing.reports.values() for failure in report]
        all_here = self._job.node_rank == 0 and hearing.all_reported and not gone
        return decide(
            number,
            [*reports, *gone],
            stop=self._stop,
            # The first meeting that failed was repeated without asking.
            may_repeat=all_here and number - min(self._unmet, 1) < self._job.restarts,
            may_meet_again=all_here and self._unmet == 0,
        )

    def _take_leave(self, number: int) -> None:
        """Let the others read what was decided before the store, which node 0 serves, goes."""
        self._control.say(leaving=True)
        until_s = time.monotonic() + _FAREWELL_S
        hearing = Hearing(self._job, self._control, number)
        while self._job.node_rank == 0 and hearing.listeners and time.monotonic() < until_s:
            self._control.wait(_POLL_S)
        self._control.close()


def _load_torch() -> None:
    from yoked.launch.bootstrap import attempt, control

    del attempt, control


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


def _bug(job: Job, problem: Exception) -> HostExit:
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
    return HostExit("failed", (Attempt(0, now_s, now_s, failure),))


def write_exit(job: Job, outcome: HostExit) -> None:
    """Write exit.json such that a reader sees all of it or nothing."""
    write_bytes(job.folder / EXIT_NAME, json.dumps(outcome.to_dict()).encode(), durable=False)


def main(argv: list[str]) -> int:
    """Run the job of the file in argv on this host; returns the exit status."""
    signals = Signals()
    try:
        job = read_job(Path(argv[0]))
    except YokedError as problem:
        sys.stderr.write(f"yoked: {problem}\n")
        return problem.exit_status
    try:
        outcome = HostProgram(job, signals).run()
    except Exception as problem:  # noqa: BLE001 - the person reads exit.json, not this process
        outcome = _bug(job, problem)
        traceback.print_exception(problem)
    write_exit(job, outcome)
    return outcome.exit_code


if __name__ == "__main__":
    outlive_full_disk()
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait inside torch would abort an interpreter that is taken down around them.
    os._exit(status)

"""What the other hosts are heard to say of one attempt, and what follows from their silence."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from yoked.launch.bootstrap.job import Job, Node
from yoked.launch.bootstrap.notice import CONNECT_S, SILENCE_S
from yoked.launch.bootstrap.verdict import VANISHED, Failure, Stop

if TYPE_CHECKING:
    from yoked.launch.bootstrap.alone import Alone
    from yoked.launch.bootstrap.control import Control

# Notices are renewed five times a second. In a run that is ending anyway, this is silence.
SILENT_S = 3.0
# A host that has been told of a failure needs GRACE_S for its ranks, and then reports.
REPORT_S = 6.0
# Ranks that were asked to save may take this long after the first of them has ended otherwise.
SAVING_S = 30.0


class Hearing:
    """What the other hosts' notices say of one attempt."""

    def __init__(self, job: Job, control: Control | Alone, number: int) -> None:
        self._job = job
        self._control = control
        self._number = number
        self._began_s = time.monotonic()
        self._failing_since_s: float | None = None
        self._reports_by_s: float | None = None
        self._called_off = False

    @property
    def reports(self) -> dict[int, tuple[Failure, ...]]:
        """The reports of this attempt by node."""
        return {
            node: notice.report
            for node, notice in self._control.notices.items()
            if notice.attempt == self._number and notice.report is not None
        }

    @property
    def all_reported(self) -> bool:
        """Whether no host has a rank left."""
        return len(self.reports) == len(self._job.nodes)

    @property
    def settled(self) -> bool:
        """Whether no more can be heard: those that have not reported, but should, are silent."""
        missing = [node for node in self._others() if node not in self.reports]
        return not missing or (
            self._reports_by_s is not None and all(self._silent(node, SILENT_S) for node in missing)
        )

    @property
    def listeners(self) -> list[int]:
        """The other nodes that are there and have not left."""
        notices = self._control.notices
        return [
            node
            for node in self._others()
            if not self._silent(node, SILENT_S) and not notices[node].leaving
        ]

    def must_end(self, stop: Stop | None) -> bool:
        """Whether no rank of the run can go on."""
        if stop == "stopped" or self._control.trouble is not None or self._lost():
            return True
        notices = self._control.notices.values()
        if not any(one.failing for one in notices if one.attempt == self._number):
            return False
        now_s = time.monotonic()
        self._failing_since_s = self._failing_since_s or now_s
        return stop is None or now_s - self._failing_since_s > SAVING_S

    def expect_reports(self) -> None:
        """From now on the hosts have REPORT_S to end their ranks and report."""
        # Node 0 hears the reports; the others then hear of its decision.
        limit_s = REPORT_S + (SILENT_S if self._job.node_rank else 0)
        self._reports_by_s = self._reports_by_s or time.monotonic() + limit_s

    def call_off(self) -> None:
        """Expect reports of an attempt that shall not begin: who is absent has not failed."""
        self._called_off = True
        self.expect_reports()

    @property
    def overdue(self) -> bool:
        """Whether reports that were expected have not come in time."""
        return self._reports_by_s is not None and time.monotonic() > self._reports_by_s

    def gone(self) -> list[Failure]:
        """The host programs that fell silent without a report."""
        if self._called_off:
            return []
        trouble = self._control.trouble
        if trouble is not None:
            failure = _vanished(self._job, 0, trouble.what)
            # Before the first word it may be this host that is cut off, or misconfigured.
            if not self._control.connected:
                failure = replace(
                    failure,
                    host=self._job.node.host,
                    node=self._job.node_rank,
                    kind=type(trouble).__name__,
                )
            return [replace(failure, fix=trouble.fix)]
        if not self._control.connected:
            return []
        return [
            self._silence(node)
            for node in self._others()
            if node not in self.reports and self._silent(node, SILENT_S)
        ]

    def _lost(self) -> bool:
        """Whether a host has been silent too long, or has not come at all."""
        late = time.monotonic() - self._began_s > CONNECT_S
        return any(
            self._silent(node, SILENCE_S)
            for node in self._others()
            if late or self._control.silent_s(node) is not None
        )

    def _silence(self, node: int) -> Failure:
        silent_s = self._control.silent_s(node)
        if silent_s is not None:
            # Longer than any silence: its connection ended.
            how = "it closed its connection"
            if math.isfinite(silent_s):
                how = f"no word from it for {silent_s:.0f} s"
            what = f"its launcher is gone: {how}"
            return _vanished(self._job, node, what)
        first, port = self._job.nodes[0], self._job.control_port
        failure = _vanished(self._job, node, f"its launcher did not reach {first.host}")
        return replace(failure, fix=_no_way(first, port, self._job.nodes[node].host))

    def _silent(self, node: int, limit_s: float) -> bool:
        silent_s = self._control.silent_s(node)
        return silent_s is None or silent_s > limit_s

    def _others(self) -> list[int]:
        return [node for node in range(len(self._job.nodes)) if node != self._job.node_rank]


def _vanished(job: Job, node: int, what: str) -> Failure:
    host = job.nodes[node].host
    return Failure(
        host=host,
        node=node,
        kind=VANISHED,
        what=what,
        fix=(f"look at {host}: it was switched off or cut off, or its launcher was killed",),
        time_s=time.time(),
    )


def _no_way(first: Node, port: int, host: str) -> tuple[str, ...]:
    return (
        f"a firewall of {first.host} is the usual cause, for port {port}: yoked doctor",
        f"logs/launcher.err on {host} says more",
    )

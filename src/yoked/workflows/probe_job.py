"""The part of a probe that needs torch: one job on all hosts, removed when it ends."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from yoked.core.parallel import at_once
from yoked.errors import JobError
from yoked.fleet.model import Fleet
from yoked.launch.datapush import push_kernels
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reconnecting
from yoked.launch.program import Program
from yoked.launch.start import JobRequest, NodePlan, plan_nodes, start_job
from yoked.remote.client import AgentClient
from yoked.runs import stamp
from yoked.workflows.fleet_job import require_versions

WORKER = "yoked.probe.worker"
PROFILER = "yoked.train.profile_step"


def nodes_of(
    fleet: Fleet,
    clients: Mapping[str, AgentClient],
    addresses: Mapping[str, tuple[str, str]],
) -> list[NodePlan]:
    """The hosts with their ranks, as in training. Raises HostError that names what a host lacks."""
    nodes = plan_nodes(fleet, clients, None, lambda: addresses)
    require_versions(nodes)
    return nodes


def run_worker(
    fleet: Fleet,
    nodes: Sequence[NodePlan],
    spec: Mapping[str, Any],
    doing: Callable[[str], None],
) -> dict[str, Any]:
    """Run the worker on all hosts; returns its result. doing: called with each progress message.

    Ctrl-C ends the job on all hosts. Raises JobError if the job failed; its logs then stay on the
    hosts.
    """
    name = f"probe-{stamp(datetime.now().astimezone())}-{secrets.token_hex(2)}"
    at_once(lambda node: push_kernels(node.client), nodes, leave=True)
    request = JobRequest(
        run=name,
        program=Program("module", WORKER, (json.dumps(spec),), None),
        own_threads=True,
        bootstrap=False,
    )

    listener = RankListener(doing)
    keep_logs = False
    job = RunHandle.of(start_job(request, list(nodes), lambda _: None), reconnecting(fleet))
    try:
        with contextlib.suppress(ResultReceivedError):
            end = job.follow(listener)
            if end.detached:
                raise KeyboardInterrupt
            keep_logs = end.state in ("failed", "lost")
            flag = fleet.flag
            links_alone = f"yoked probe --no-collectives --no-compute{flag}    links alone"
            end.raise_failure(fix=links_alone, fleet_flag=flag)
    finally:
        if not keep_logs:
            job.remove(kill=True)
    if listener.result is None:
        raise JobError(f"{name} ended without a result", fix="yoked probe    once more")
    return listener.result


class ResultReceivedError(Exception):
    """Rank 0 has sent the result; waiting for the end of the job would only take time."""


class RankListener:
    """Reads rank 0's lines. result: from the last of them, which ends the reading."""

    live = None

    def __init__(self, doing: Callable[[str], None]) -> None:
        self.result: dict[str, Any] | None = None
        self._doing = doing
        self._unfinished = ""

    def note(self, line: str) -> None:
        """Show a message about the job, such as an unreachable host."""
        self._doing(line)

    def rank_output(self, stream: str, text: str) -> None:
        """Take a piece of rank 0's output. stderr is ignored; it is in the logs of a failed job."""
        if stream != "out":
            return
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            self._parse_line(line)

    def _parse_line(self, line: str) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            # A library printed this line.
            return
        if isinstance(message, dict) and "doing" in message:
            self._doing(str(message["doing"]))
        elif isinstance(message, dict) and isinstance(message.get("result"), dict):
            self.result = message["result"]
            raise ResultReceivedError

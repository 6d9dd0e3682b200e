"""A probe of a fleet: links by the agents; the rest, which needs torch, by a job on all hosts."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from yoked.core.parallel import at_once
from yoked.doctor.checks.processes import notable_cores
from yoked.errors import JobError, YokedError
from yoked.fleet.discover import find_addresses, require_distinct
from yoked.fleet.model import Fleet
from yoked.launch.datapush import push_kernels
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import connected, reconnecting
from yoked.launch.program import Program
from yoked.launch.start import JobRequest, NodePlan, Started, plan_nodes, start_job
from yoked.probe.links import QUICK, LinkEnd, LinkMeasurement, Timing, measure_links
from yoked.probe.store import save
from yoked.probe.summary import is_complete, summarise
from yoked.records.measurement import Measurement
from yoked.remote.client import AgentClient, host_wrote
from yoked.runs import stamp
from yoked.workflows.fleet_job import require_versions

WORKER = "yoked.probe.worker"
PROFILER = "yoked.train.profile_step"
LARGEST_BYTES = 256_000_000
QUICK_LARGEST_BYTES = 16_000_000
QUICK_FRACTION = 0.3


@dataclass(frozen=True)
class ProbeRequest:
    """The parts of a probe to run.

    limit_s: what the collectives may take. model: the one whose step is measured, as arguments of
    the trainer. device: what ranks are told to compute on; auto: what yoked.toml says.
    """

    links: bool
    collectives: bool
    compute: bool
    quick: bool
    limit_s: float
    model: Sequence[str]
    device: str


@dataclass
class ProbeResult:
    """The result of a probe.

    skipped_sizes: sizes of collectives that would have taken too long. problem: why a part is
    missing. saved_to: the measurement's file; None: it is incomplete and was not saved.
    """

    fleet: Fleet
    measurement: Measurement
    links: list[LinkMeasurement]
    skipped_sizes: list[dict[str, Any]]
    choices: dict[str, dict[str, list[str]]]
    problem: YokedError | None
    saved_to: Path | None
    took_s: float


def probe_fleet(fleet: Fleet, wanted: ProbeRequest, show: Callable[[str], None]) -> ProbeResult:
    """Measure what is wanted, and save it if `yoked plan` can use it. show: told what goes on.

    If hosts cannot do the ranks' part, result.problem says why.
    """
    began_s = time.monotonic()
    addresses: Mapping[str, tuple[str, str]] = {}
    links: list[LinkMeasurement] = []
    nodes: list[NodePlan] = []
    told: Mapping[str, Any] = {}
    problem: YokedError | None = None
    busy_cores: dict[str, float] = {}
    with connected(fleet) as clients:
        answers = at_once(lambda client: client.call("facts"), clients.values())
        facts = dict(zip(clients, answers, strict=True))
        require_distinct(facts)
        if len(fleet.hosts) > 1:
            show("who reaches whom")
            addresses = find_addresses(fleet, clients)
        if wanted.links and addresses:
            links = measure_links(
                at_once(lambda name: _link_end(clients[name], *addresses[name]), addresses),
                clients,
                QUICK if wanted.quick else Timing(),
                lambda done, total: show(f"links: {done} of {total} pairs"),
            )
        if wanted.compute or wanted.collectives:
            try:
                nodes = plan_nodes(fleet, clients, None, lambda: addresses, wanted.device)
                require_versions(nodes)
                busy_cores = dict(at_once(lambda node: _busy_cores(node, facts), nodes))
                show("starting " + ", ".join(node.host.name for node in nodes))
                told = run_worker(fleet, nodes, _worker_spec(wanted), show)
            except YokedError as caught:
                problem = caught
    rank_0_host = next((node.host.name for node in nodes), fleet.hosts[0].name)
    # Values in it come from the ranks: an invalid one is that host's error.
    with host_wrote(rank_0_host, "what the probe measured"):
        # Ranks are numbered host by host.
        hosts = [node.host.name for node in nodes for _ in range(node.ranks)]
        profiles = told.get("profiles", [])
        ranks = list(zip(hosts, profiles, strict=True)) if profiles else []
        measurement = summarise(
            fleet=fleet.name,
            taken_s=time.time(),
            hosts=[host.name for host in fleet.hosts],
            facts=facts,
            links=[each.link for each in links],
            ranks=ranks,
            timed=told.get("collectives", []),
            busy_cores={host: cores for host, cores in busy_cores.items() if cores},
        )
        return ProbeResult(
            fleet=fleet,
            measurement=measurement,
            links=links,
            skipped_sizes=told.get("left_out", []),
            choices={host: report["choices"] for host, report in ranks if report is not None},
            problem=problem,
            # A plan cannot use any other.
            saved_to=save(fleet, measurement) if is_complete(measurement) else None,
            took_s=time.monotonic() - began_s,
        )


def _link_end(client: AgentClient, interface: str, address: str) -> LinkEnd:
    """The address of a host, with the MTU of its interface."""
    mtus = {each["name"]: each["mtu_bytes"] for each in client.call("interfaces")}
    return LinkEnd(client.host, interface, address, mtus.get(interface))


def _busy_cores(node: NodePlan, facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, float]:
    """A host, and how many of its cores other programs use; 0.0: few, or it cannot tell."""
    told = node.client.call("health", parts=["processes"])["processes"] or {}
    return node.host.name, notable_cores(told["busy"], facts[node.host.name]["usable_cores"])


def _worker_spec(wanted: ProbeRequest) -> dict[str, Any]:
    """What `yoked.probe.worker` takes."""
    collectives = {
        "largest_bytes": QUICK_LARGEST_BYTES if wanted.quick else LARGEST_BYTES,
        "limit_s": wanted.limit_s * (QUICK_FRACTION if wanted.quick else 1.0),
        "gpus": wanted.device in ("auto", "cuda"),
    }
    return {
        "profile": {"module": PROFILER, "args": wanted.model} if wanted.compute else None,
        "collectives": collectives if wanted.collectives else None,
    }


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
    jobs: list[RunHandle] = []

    def begun(started: Started) -> None:
        jobs.append(RunHandle.of(started, reconnecting(fleet)))

    try:
        # Noted before it returns: Ctrl-C may come between the two.
        start_job(request, list(nodes), lambda _: None, approve=begun)
        with contextlib.suppress(ResultReceivedError):
            end = jobs[0].follow(listener)
            if end.detached:
                raise KeyboardInterrupt
            keep_logs = end.state in ("failed", "lost")
            flag = fleet.flag
            links_alone = f"yoked probe --no-collectives --no-compute{flag}    links alone"
            end.raise_failure(fix=links_alone, fleet_flag=flag)
    finally:
        for job in jobs if not keep_logs else ():
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

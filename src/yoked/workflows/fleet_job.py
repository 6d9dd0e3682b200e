"""A job on a fleet, from its request to its end: what `yoked run` and `yoked train` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from yoked.doctor.preflight import run_preflight
from yoked.errors import HostError, YokedError
from yoked.fleet.discover import find_addresses
from yoked.fleet.model import Fleet
from yoked.launch.attach import JobEnd, View, left_running, shown, watch_line
from yoked.launch.busy import Share, other_runs, require_free, runs_of_others, tell_all
from yoked.launch.datapush import push_compiled
from yoked.launch.environment import all_versions, check_versions
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reconnecting, require_all
from yoked.launch.launching import Launch, Stage
from yoked.launch.registry import Record, collect
from yoked.launch.runrecord import keep_doctor, not_asked, program_file
from yoked.launch.start import JobRequest, NodePlan, Started, plan_nodes, start_job
from yoked.records.examination import Need
from yoked.remote.connect import Connections
from yoked.units import listed


@dataclass(frozen=True)
class FleetJob:
    """A job that was started. end: None when nobody waited for it."""

    started: Started
    end: JobEnd | None


def run_job(
    request: JobRequest,
    fleet: Fleet,
    view: View,
    *,
    detach: bool,
    doctor: bool,
    need: Need,
    share: Share | None = None,
    before: Callable[[list[NodePlan], list[Record]], JobRequest] | None = None,
    after: Callable[[FleetJob], None] | None = None,
) -> FleetJob:
    """Start a job and, unless it is to be left alone, follow it to its end.

    detach: return as soon as it runs. doctor: have its quick form go on beside the preparations;
    what it finds ends them. need: what it compares with. share: whether it is to start where other
    runs are; None: it is, and they are told. before: completes the request when hosts are known,
    and their runs. after: acts while they are connected.
    """
    began_s = time.monotonic()
    stage = Stage("connecting")
    with ExitStack() as stack, ExitStack() as drawn:
        drawn.enter_context(shown(view, stage.line))
        connections = stack.enter_context(closing(Connections(fleet.hosts, fleet.ssh_file)))
        preflight = stack.enter_context(
            run_preflight(fleet, need, wanted=doctor, lend=connections.agent)
        )
        stage.waits_for(lambda: connections.pending)
        connections.wait()
        require_all(connections.failures)
        clients = connections.clients
        stage.doing(f"looking at {listed(clients)}")
        nodes = plan_nodes(
            fleet,
            clients,
            request.ranks,
            lambda: find_addresses(fleet, clients),
            request.device,
        )
        stage.doing(f"comparing the versions of Python and torch on {listed(clients)}")
        nodes = require_versions(nodes)
        records, _ = collect(clients)
        if others := [*other_runs(records, request.run), *runs_of_others(clients)]:
            # A question, and the line that is drawn, would be in each other's way.
            drawn.close()
            require_free(others, share or tell_all(view.note))
            drawn.enter_context(shown(view, stage.line))
        by_host = {node.host.name: node for node in nodes}
        stage.at_once("copying compiled code to", _push_compiled, by_host)
        if before is not None:
            stage.doing("preparing data and what else travels")
            request = before(nodes, records)
        files = {**request.files, **program_file(request, nodes)}
        request = replace(request, notify=fleet.notify, files=files)
        connect_s = time.monotonic() - began_s

        def approve(started: Started) -> None:
            said = not_asked("there is no link" if doctor else "--no-doctor")
            if preflight is not None:
                stage.doing("waiting for the doctor's quick form")
                handle = RunHandle.of(started, reconnecting(fleet))
                launch = Launch(handle.look, lambda: handle.clients, view.note)
                # What came to grief is told at once, as the end of the run.
                preflight.require_health(view.note, unless=launch.look)
                said = preflight.said
            keep_doctor(started.nodes[0].client, started.run, started.launch_id, said)

        started = start_job(request, nodes, view.note, stage=stage, approve=approve)
        with left_running(started.run, view.note, fleet.flag):
            started.took_s["connect"] = connect_s
            drawn.close()  # whoever follows the run has the line
            end = None
            if not detach:
                view.note(watch_line(started.run, fleet.flag))
                end = RunHandle.of(started, reconnecting(fleet)).follow(view)
        job = FleetJob(started, end)
        if after is not None:
            after(job)
    return job


def _push_compiled(node: NodePlan) -> None:
    # Where it cannot be had, ranks compile for themselves. Files here may go meanwhile.
    with suppress(YokedError, OSError):
        push_compiled(node.client, node.python)


def require_versions(nodes: Sequence[NodePlan]) -> list[NodePlan]:
    """The same with their versions. Raises HostError for those that do not work together."""
    interpreters = [(node.host, node.client, node.python) for node in nodes]
    found = all_versions(interpreters)
    if problems := check_versions(interpreters, found):
        raise HostError("\n".join(problem.what for problem in problems), fix=problems[0].fix)
    return [
        replace(node, versions={"python": has.python, **has.packages})
        for node, has in zip(nodes, found, strict=True)
    ]

"""A job on a fleet, from its order to its end: what `yoked run` and `yoked train --fleet` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from yoked.cli.commands.fleet_flags import JobFlags, check_run_name
from yoked.cli.commands.fleet_runs import reconnect, same_fleet
from yoked.cli.live import LiveView
from yoked.cli.output import Output
from yoked.doctor.preflight import beside
from yoked.errors import HostError, YokedError
from yoked.fleet.discover import find_addresses
from yoked.fleet.file import open_fleet
from yoked.fleet.model import Fleet
from yoked.launch.attach import JobEnd, follow_job
from yoked.launch.environment import check_versions
from yoked.launch.start import Order, Seat, Started, start_job, take_seats
from yoked.records.examination import Need
from yoked.remote.client import AgentClient
from yoked.remote.connect import Arrivals, connect_all


@contextmanager
def connected(fleet: Fleet) -> Iterator[dict[str, AgentClient]]:
    """An agent on every host of a fleet. Raises HostError that names each host without one."""
    clients, failures = connect_all(fleet.hosts, fleet.ssh_file)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        require_all(failures)
        yield clients


def require_all(failures: Mapping[str, YokedError]) -> None:
    """Raise HostError that names each host without an agent, if there is one."""
    if failures:
        raise HostError(
            "\n".join(failure.what for failure in failures.values()),
            fix=[line for failure in failures.values() for line in failure.fix],
        )


@dataclass(frozen=True)
class FleetJob:
    """A job that was started. end: None when nobody waited for it."""

    started: Started
    end: JobEnd | None


def run_job(
    order: Order,
    flags: JobFlags,
    output: Output,
    *,
    fleet: Fleet | None = None,
    need: Need | None = None,
    before: Callable[[list[Seat]], Order] | None = None,
    after: Callable[[FleetJob], None] | None = None,
) -> FleetJob:
    """Start a job and, unless it is to be left alone, follow it to its end.

    The doctor's quick form goes on beside the preparations; what it finds ends them. need: what
    it compares with. before: completes the order when the hosts are known. after: acts while they
    are connected.
    """
    check_run_name(order.run)
    fleet = fleet or open_fleet(flags.fleet)
    began_s = time.monotonic()
    with ExitStack() as stack:
        arrivals = stack.enter_context(closing(Arrivals(fleet.hosts, fleet.ssh_file)))
        doctor = stack.enter_context(
            beside(fleet, need or Need(), wanted=flags.doctor, lend=arrivals.agent)
        )
        arrivals.wait()
        require_all(arrivals.failures)
        clients = arrivals.clients
        seats = take_seats(fleet, clients, order.ranks, lambda: find_addresses(fleet, clients))
        require_versions(seats)
        if before is not None:
            order = before(seats)
        connect_s = time.monotonic() - began_s
        started = start_job(
            order,
            seats,
            output.note,
            approve=lambda: None if doctor is None else doctor.require_health(output.note),
        )
        started.took_s["connect"] = connect_s
        end = None
        if not flags.detach:
            view = LiveView(output)
            again = partial(reconnect, fleet)
            end = follow_job(clients, order.run, view, again, live=view.live)
        job = FleetJob(started, end)
        if after is not None:
            after(job)
    return job


def require_versions(seats: Iterable[Seat]) -> None:
    """Raise HostError for versions that do not work together."""
    problems = check_versions([(seat.host, seat.client, seat.python) for seat in seats])
    if problems:
        raise HostError("\n".join(problem.what for problem in problems), fix=problems[0].fix)


def report_job(job: FleetJob, flags: JobFlags, output: Output) -> int:
    """Say how a job ended, or that it runs; returns the exit status."""
    started, end, flag = job.started, job.end, same_fleet(flags.fleet)
    payload = {
        "run": started.run,
        "hosts": [
            {
                "name": seat.host.name,
                "ranks": seat.ranks,
                "address": seat.address,
                "interface": seat.interface,
                "python": seat.python,
            }
            for seat in started.seats
        ],
        "start_s": started.took_s,
        **({"state": "running"} if end is None else end.to_dict()),
    }
    if end is None:
        output.result(
            payload,
            verdict=f"run {started.run} runs on {len(started.seats)} hosts, and needs nobody here",
            next_commands=[f"yoked attach {started.run}{flag}", f"yoked stop {started.run}{flag}"],
        )
        return 0
    output.result(
        payload, verdict=end.verdict, evidence=end.evidence, next_commands=end.next_commands(flag)
    )
    return end.exit_code

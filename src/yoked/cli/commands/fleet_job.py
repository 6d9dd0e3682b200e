"""A job on a fleet, from its order to its end: what `yoked run` and `yoked train --fleet` share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from yoked.at_once import at_once
from yoked.cli.commands.doctor_quick import beside
from yoked.cli.commands.fleet_flags import JobFlags, check_run_name
from yoked.cli.commands.fleet_runs import reconnect
from yoked.cli.output import Output
from yoked.errors import HostError, YokedError
from yoked.fleet.discover import find_addresses
from yoked.fleet.file import open_fleet
from yoked.fleet.model import Fleet, Host
from yoked.launch.attach import JobEnd, follow_job
from yoked.launch.environment import check_versions
from yoked.launch.start import Order, Seat, Started, start_job, take_seats
from yoked.launch.tls import make_certificates, require_tls
from yoked.records.examination import Need
from yoked.remote.client import AgentClient
from yoked.remote.connect import connect_all, connect_host


@contextmanager
def connected(fleet: Fleet) -> Iterator[dict[str, AgentClient]]:
    """An agent on every host of a fleet. Raises HostError that names each host without one."""
    clients, failures = connect_all(fleet.hosts, fleet.ssh_config)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        if failures:
            raise HostError(
                "\n".join(failure.what for failure in failures.values()),
                fix=[line for failure in failures.values() for line in failure.fix],
            )
        yield clients


class Lent(AgentClient):
    """An agent that somebody else closes: the same connection, for another user of it."""

    def __init__(self, owner: AgentClient) -> None:
        self.__dict__ = owner.__dict__

    def close(self, patience_s: float = 0.0) -> None:
        """Leave it open."""


class Agents:
    """Agents on all hosts of a fleet, connected to once, for the launch and the doctor beside it.

    Close it to close them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._pool = ThreadPoolExecutor(len(fleet.hosts))
        self._coming = {
            host.name: self._pool.submit(connect_host, host, fleet.ssh_config)
            for host in fleet.hosts
        }

    def lend(self, host: Host, *_: object, **__: object) -> AgentClient:
        """The agent of a host, once it is there. Raises why it does not come."""
        return Lent(self._coming[host.name].result())

    def all(self) -> dict[str, AgentClient]:
        """All agents. Raises HostError that names each host without one."""
        failures: list[YokedError] = []
        for each in self._coming.values():
            problem = each.exception()
            if isinstance(problem, YokedError):
                failures.append(problem)
            elif problem is not None:
                raise problem
        if failures:
            raise HostError(
                "\n".join(problem.what for problem in failures),
                fix=[line for problem in failures for line in problem.fix],
            )
        return {name: each.result() for name, each in self._coming.items()}

    def close(self) -> None:
        """Close those that came."""
        for each in self._coming.values():
            if each.exception() is None:
                each.result().close()
        self._pool.shutdown()


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
        agents = Agents(fleet)
        stack.callback(agents.close)
        doctor = stack.enter_context(
            beside(fleet, need or Need(), wanted=flags.doctor, connect=agents.lend)
        )
        clients = agents.all()
        seats = take_seats(fleet, clients, order.ranks, lambda: find_addresses(fleet, clients))
        require_versions(seats)
        if before is not None:
            order = before(seats)
        if flags.tls:
            order = dataclasses.replace(order, tls=_certificates(order.run, seats))
        connect_s = time.monotonic() - began_s
        started = start_job(
            order,
            seats,
            output.note,
            approve=lambda: None if doctor is None else doctor.require_health(output),
        )
        started.took_s["connect"] = connect_s
        end = None
        if not flags.detach:
            end = follow_job(clients, order.run, output, partial(reconnect, fleet))
        job = FleetJob(started, end)
        if after is not None:
            after(job)
    return job


def _certificates(run: str, seats: list[Seat]) -> dict[str, str]:
    """Certificates of a run, when every host can use them. Raises HostError when one cannot."""
    at_once(lambda seat: require_tls(seat.client, seat.python, seat.interface), seats)
    return make_certificates(run)


def require_versions(seats: Iterable[Seat]) -> None:
    """Raise HostError for versions that do not work together."""
    problems = check_versions([(seat.host, seat.client, seat.python) for seat in seats])
    if problems:
        raise HostError("\n".join(problem.what for problem in problems), fix=problems[0].fix)


def report_job(job: FleetJob, output: Output) -> int:
    """Say how a job ended, or that it runs; returns the exit status."""
    started, end = job.started, job.end
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
            next_commands=[f"yoked attach {started.run}", f"yoked stop {started.run}"],
        )
        return 0
    output.result(
        payload, verdict=end.verdict, evidence=end.evidence, next_commands=end.next_commands
    )
    return end.exit_code

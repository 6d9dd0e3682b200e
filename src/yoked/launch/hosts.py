"""The hosts of a fleet with an agent on each, and the runs that they know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from yoked.core.parallel import map_hosts
from yoked.errors import HostError, YokedError
from yoked.fleet.model import Fleet
from yoked.launch.handle import RunHandle
from yoked.launch.registry import Record, collect, join, pick
from yoked.remote.client import AgentClient
from yoked.remote.connect import Connections, connect_all, connect_host


class Hosts:
    """The hosts of a fleet, which are being connected to.

    clients: the agents that are there; unreachable: why others are not. note: told of a host that
    has an agent, and gives no answer.
    """

    def __init__(
        self, fleet: Fleet, connections: Connections, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self.fleet = fleet
        self.connections = connections
        self._note = note
        self._silent: dict[str, YokedError] = {}

    @property
    def clients(self) -> dict[str, AgentClient]:
        """The agents that are there."""
        return self.connections.clients

    @property
    def unreachable(self) -> dict[str, YokedError]:
        """Why others are not, or what they did not answer."""
        return {**self.connections.failures, **self._silent}

    def records(self, *, sizes: bool = False) -> list[Record]:
        """The runs of these hosts, the newest first."""
        records, silent = collect(self.clients, sizes=sizes)
        self._name(silent)
        return records

    def ask(self, call: str, **args: Any) -> dict[str, Any]:
        """What each host answers to a call."""
        told, silent = map_hosts(lambda client: client.call(call, **args), self.clients)
        self._name(silent)
        return told

    def _name(self, silent: Mapping[str, YokedError]) -> None:
        """Name hosts that gave no answer, each once."""
        for host, problem in silent.items():
            if host not in self._silent:
                self._note(str(problem))
            self._silent[host] = problem

    def run(self, named: str | None) -> RunHandle:
        """The run of a name; None: the newest. Raises UsageError, or HostError for no host."""
        self.connections.wait()
        if not self.clients:
            require_all(self.unreachable)
        return self._handle(pick(self.records(), named))

    def active_run(self, named: str) -> RunHandle | None:
        """A run that goes on, as soon as the host of its rank 0 tells of it; None: there is none.

        Other hosts need not be there yet.
        """
        for name, client in self.connections.each():
            try:
                records = join({name: [client.call("job_status", run=named)]})
            except YokedError:
                # It has no part in that run, or was lost again: what all say will tell.
                continue
            # One of this machine may be of another folder: `pick` knows.
            mine = records and records[0].run_dir is None
            if mine and records[0].active and records[0].host_of(0) == name:
                return self._handle(records[0])
        return None

    def _handle(self, record: Record) -> RunHandle:
        clients = {name: self.clients[name] for name in record.hosts}
        return RunHandle(
            record.run,
            clients,
            reconnecting(self.fleet),
            record=record,
            connections=self.connections,
        )


@contextmanager
def reach_hosts(fleet: Fleet, note: Callable[[str], None], *, wait: bool = True) -> Iterator[Hosts]:
    """Agents on the hosts of a fleet. A host that does not answer is named, and left out.

    wait: until each has answered, or is known not to.
    """
    connections = Connections(
        fleet.hosts, fleet.ssh_file, on_failure=lambda problem: note(str(problem))
    )
    with closing(connections):
        if wait:
            connections.wait()
        yield Hosts(fleet, connections, note)


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


def reconnecting(fleet: Fleet) -> Callable[[str, int], AgentClient]:
    """Makes another connection to a host of a fleet, which may take so many seconds to answer."""

    def reconnect(name: str, patience_s: int) -> AgentClient:
        host = next(host for host in fleet.hosts if host.name == name)
        return connect_host(host, fleet.ssh_file, patience_s=patience_s)

    return reconnect

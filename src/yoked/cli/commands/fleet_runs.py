"""What the commands share that live with runs: the hosts, and what is known of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yoked.cli.output import Output
from yoked.errors import HostError, YokedError
from yoked.launch.registry import Record, collect, pick
from yoked.remote.client import AgentClient

if TYPE_CHECKING:
    from yoked.fleet.model import Fleet

FleetFlag = Annotated[
    Path | None,
    Parameter(
        name="--fleet",
        help="The fleet's file. Default: yoked.toml, where there is one; else this machine.",
    ),
]
RunName = Annotated[str | None, Parameter(help="The run. Default: the newest.")]
JsonFlag = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")
]


@dataclass
class Hosts:
    """The hosts of a fleet that answer. unreachable: why the others do not."""

    fleet: Fleet
    clients: dict[str, AgentClient]
    unreachable: dict[str, YokedError]

    def reconnect(self, name: str) -> AgentClient:
        """Another connection to a host. Raises HostError."""
        from yoked.remote.connect import connect_host

        host = next(host for host in self.fleet.hosts if host.name == name)
        return connect_host(host, self.fleet.ssh_config)

    def records(self, *, sizes: bool = False) -> list[Record]:
        """The runs of these hosts, the newest first."""
        records, silent = collect(self.clients, sizes=sizes)
        self.unreachable.update(silent)
        return records

    def pick(self, named: str | None) -> Record:
        """The run of a name; None: the newest. Raises UsageError, or HostError for no host."""
        if not self.clients:
            raise HostError(
                "\n".join(problem.what for problem in self.unreachable.values()),
                fix=[line for problem in self.unreachable.values() for line in problem.fix],
            )
        return pick(self.records(), named)

    def only(self, record: Record) -> Mapping[str, AgentClient]:
        """Those that have a part in a run."""
        return {name: self.clients[name] for name in record.hosts}


@contextmanager
def reach_hosts(named: Path | None, output: Output) -> Iterator[Hosts]:
    """Agents on the hosts of a fleet; without a fleet's file, on this machine alone.

    A host that does not answer is named, and left out.
    """
    from yoked.fleet.file import open_fleet
    from yoked.remote.connect import connect_all

    fleet = open_fleet(named)
    clients, failures = connect_all(fleet.hosts, fleet.ssh_config)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        for problem in failures.values():
            output.note(str(problem))
        yield Hosts(fleet, clients, failures)

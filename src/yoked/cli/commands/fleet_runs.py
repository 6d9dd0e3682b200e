"""What the commands share that live with runs: the hosts, and what is known of their runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yoked.cli.output import Output
from yoked.errors import HostError, YokedError

if TYPE_CHECKING:
    from yoked.fleet.model import Fleet
    from yoked.launch.registry import Record
    from yoked.remote.client import AgentClient
    from yoked.remote.connect import Arrivals

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
RawFlag = Annotated[
    bool,
    Parameter(
        name="--raw",
        negative="",
        help="Show it unfiltered: its escape sequences act on this terminal. Otherwise colours, "
        "carriage returns and erased lines pass, and nothing more.",
    ),
]


def same_fleet(named: Path | None) -> str:
    """What a command line about the fleet of --fleet ends with; nothing where none was named."""
    return "" if named is None else f" --fleet {shlex.quote(str(named))}"


class Hosts:
    """The hosts of a fleet, which are being connected to.

    clients: the agents that are there; unreachable: why others are not.
    """

    def __init__(self, fleet: Fleet, arrivals: Arrivals) -> None:
        self.fleet = fleet
        self.arrivals = arrivals
        self._silent: dict[str, YokedError] = {}

    @property
    def clients(self) -> dict[str, AgentClient]:
        """The agents that are there."""
        return self.arrivals.clients

    @property
    def unreachable(self) -> dict[str, YokedError]:
        """Why others are not, or what they did not answer."""
        return {**self.arrivals.failures, **self._silent}

    def reconnect(self, name: str, patience_s: int) -> AgentClient:
        """Another connection to a host. Raises HostError."""
        return reconnect(self.fleet, name, patience_s)

    def records(self, *, sizes: bool = False) -> list[Record]:
        """The runs of these hosts, the newest first."""
        from yoked.launch.registry import collect

        records, silent = collect(self.clients, sizes=sizes)
        self._silent.update(silent)
        return records

    def pick(self, named: str | None) -> Record:
        """The run of a name; None: the newest. Raises UsageError, or HostError for no host."""
        from yoked.launch.registry import pick

        self.arrivals.wait()
        if not self.clients:
            raise HostError(
                "\n".join(problem.what for problem in self.unreachable.values()),
                fix=[line for problem in self.unreachable.values() for line in problem.fix],
            )
        return pick(self.records(), named)

    def find_active(self, named: str | None) -> Record | None:
        """A run that goes on, as soon as the host of its rank 0 tells of it; None: there is none.

        Other hosts need not be there yet.
        """
        from yoked.launch.registry import join

        if named is None:
            return None
        for name, client in self.arrivals.each():
            try:
                records = join({name: [client.call("job_status", run=named)]})
            except YokedError:
                # It has no part in that run, or was lost again: what all say will tell.
                continue
            # One of this machine may be of another folder: `pick` knows.
            mine = records and records[0].run_dir is None
            if mine and records[0].active and records[0].host_of(0) == name:
                return records[0]
        return None

    def only(self, record: Record) -> Mapping[str, AgentClient]:
        """Those that have a part in a run."""
        return {name: self.clients[name] for name in record.hosts}


@contextmanager
def reach_hosts(named: Path | None, output: Output, *, wait: bool = True) -> Iterator[Hosts]:
    """Agents on the hosts of a fleet; without a fleet's file, on this machine alone.

    A host that does not answer is named, and left out. wait: until each has answered, or is
    known not to.
    """
    from yoked.fleet.file import open_fleet
    from yoked.remote.connect import Arrivals

    fleet = open_fleet(named)
    arrivals = Arrivals(
        fleet.hosts, fleet.ssh_file, on_failure=lambda problem: output.note(str(problem))
    )
    try:
        if wait:
            arrivals.wait()
        yield Hosts(fleet, arrivals)
    finally:
        arrivals.close()


def reconnect(fleet: Fleet, name: str, patience_s: int) -> AgentClient:
    """Another connection to a host of a fleet. Raises HostError.

    patience_s: how long it may take to answer.
    """
    from yoked.remote.connect import connect_host

    host = next(host for host in fleet.hosts if host.name == name)
    return connect_host(host, fleet.ssh_file, patience_s=patience_s)

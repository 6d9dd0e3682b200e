"""Other runs on the hosts that a run is to have: whose, on which, since when.

Two runs share cores, memory and the network: each is slower, and one may run out of memory. A
person may want that, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from yoked.core.parallel import map_hosts
from yoked.errors import JobError
from yoked.fleet.model import HERE
from yoked.launch.registry import Record, collect
from yoked.remote.client import AgentClient
from yoked.units import format_duration, listed

# As the doctor has it (doctor/checks/processes.py).
CODE = "other-run"
# Whether a run is to start beside others; it is told of each in a line.
Share = Callable[[Sequence[str]], bool]


@dataclass(frozen=True)
class OtherRun:
    """A run that goes on. whose: who started it, as far as is known. is_ours: the user who asks
    can stop it.
    """

    name: str
    hosts: tuple[str, ...]
    whose: str | None
    for_s: float
    is_ours: bool = True

    @property
    def line(self) -> str:
        """Such as `run night of ada@laptop has been on i9 and pi for 25 min 10 s`."""
        whose = "" if self.whose is None else f" of {self.whose}"
        hosts = ("this machine" if host == HERE else host for host in self.hosts)
        where = f"on {listed(hosts)} for {format_duration(self.for_s)}"
        return f"run {self.name}{whose} has been {where}"

    @property
    def ending(self) -> str:
        """How the hosts become free."""
        if self.is_ours:
            return f"yoked stop {self.name}    saves and ends it"
        return f"ask {self.whose} when run {self.name} ends"


def other_runs(records: Iterable[Record], but: str | None) -> list[OtherRun]:
    """Runs that go on, out of what hosts tell of this user's. but: the run of a fleet that is to
    start.
    """
    return [
        OtherRun(record.name, tuple(record.hosts), record.by, record.for_s)
        for record in records
        if record.active and (record.name != but or record.run_dir is not None)
    ]


def runs_of_others(clients: Mapping[str, AgentClient]) -> list[OtherRun]:
    """Runs of other users on these hosts, by what their processes show."""
    told, _ = map_hosts(lambda client: client.call("job_others"), clients)
    hosts: dict[tuple[str, str], list[str]] = {}
    ages_s: dict[tuple[str, str], float] = {}
    for host, runs in told.items():
        for each in runs:
            key = (each["run"], each["user"])
            hosts.setdefault(key, []).append(host)
            ages_s[key] = max(each["age_s"], ages_s.get(key, 0.0))
    return [
        OtherRun(name, tuple(hosts[name, user]), user, ages_s[name, user], is_ours=False)
        for name, user in hosts
    ]


def note_others(clients: Mapping[str, AgentClient], note: Callable[[str], None]) -> None:
    """Say which runs are on hosts that are about to be measured."""
    records, _ = collect(clients)
    for other in (*other_runs(records, None), *runs_of_others(clients)):
        note(f"{other.line}: what is measured beside it is too slow")


def tell_all(note: Callable[[str], None]) -> Share:
    """Start beside all others, and say which they are."""

    def share(lines: Sequence[str]) -> bool:
        for line in lines:
            note(line)
        return True

    return share


def require_free(others: Sequence[OtherRun], share: Share) -> None:
    """Raise JobError where other runs go on, and none is to start beside them."""
    if not others or share([f"{other.line}: both will be slower" for other in others]):
        return
    said = "; ".join(other.line for other in others)
    error = JobError(
        f"{said}: another one beside it makes both slower",
        fix=(others[0].ending, "--beside    starts this one all the same"),
    )
    error.code = CODE
    error.params = {"runs": ", ".join(other.name for other in others)}
    raise error

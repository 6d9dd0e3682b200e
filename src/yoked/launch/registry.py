"""The same run on all hosts of a fleet, joined into one record.

Nothing is kept here: what the hosts' agents tell is all there is, so every controller that
reaches them knows the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

from yoked.agent.jobfolder import ACTIVE, LAUNCHER_ENDED
from yoked.agent.verdict import fault_of, held_up_by, verdict_of
from yoked.core.parallel import map_hosts
from yoked.core.patterns import MOST_PATTERNS
from yoked.diagnosis.cause import SLOW
from yoked.diagnosis.words import named, place
from yoked.errors import JobError, UsageError, YokedError
from yoked.launch.bootstrap.outcome import HOST_LOST
from yoked.remote.client import DEADLINE_S, AgentClient
from yoked.units import format_duration

# What describes a run whose hosts differ: the first of these that any of them is in.
_SAYS_MOST = ("running", "prepared", "failed", "lost", "stopped", "interrupted", "finished")

# Of a host that gave no answer before, and may come back.
_HASTY_S = 1.0
# A number behind it must find room in the name of a job.
_LONGEST_NAME = 70


@dataclass(frozen=True)
class Record:
    """A run. hosts: what each host that answered tells of it, as `job_status` has it."""

    run: str
    launch_id: str
    hosts: Mapping[str, Mapping[str, Any]]

    @property
    def state(self) -> str:
        """prepared, running, finished, failed, stopped, interrupted or lost."""
        states = {told["state"] for told in self.hosts.values()}
        return next(state for state in _SAYS_MOST if state in states)

    @property
    def active(self) -> bool:
        """Whether it is not over."""
        return self.state in ACTIVE

    @property
    def nodes(self) -> list[Mapping[str, Any]]:
        """All hosts of the run, those that do not answer too: host, address, ranks."""
        return list(self._first["nodes"])

    @property
    def trains(self) -> str | None:
        """The run of `yoked train` that this is a part of; None: another program's."""
        named: str | None = self._first.get("trains")
        return named

    @property
    def outputs(self) -> tuple[str, ...]:
        """Patterns of what its program writes that is to be brought home."""
        return tuple(self._first.get("outputs") or ())[:MOST_PATTERNS]

    @property
    def run_dir(self) -> str | None:
        """Where it trains on this machine; None: on a fleet, where the hosts keep it."""
        folder: str | None = self._first.get("run_dir")
        return folder

    def training_folder(self, host: str) -> str:
        """Where the folder of this training lies. host: that of its rank 0."""
        state = PurePosixPath(self.hosts[host]["folder"]).parent.parent
        return self.run_dir or f"{state}/runs/{self.trains}"

    @property
    def by(self) -> str | None:
        """Who started it, and on which machine; None: not known."""
        told: str | None = self._first.get("by")
        return told

    @property
    def for_s(self) -> float:
        """How long ago it was prepared, by the clock of the host that tells it."""
        first = self._first
        return max(0.0, float(first.get("now_s") or 0.0) - float(first["started_s"] or 0.0))

    @property
    def name(self) -> str:
        """What a person calls it. Each start of a run is a job; the run has one name."""
        return self.trains or self.run

    def go_on(self, fleet_flag: str) -> list[str]:
        """The command that goes on with a training that ended before its time; else none.

        fleet_flag: what a command line about these hosts ends with.
        """
        early = self.state in ("interrupted", "stopped", "failed", "lost")
        if not early or not self.trains:
            return []
        if not self.may_resume:
            return []
        runs_dir = Path(self.run_dir).parent if self.run_dir else Path("runs").absolute()
        where = "" if runs_dir == Path("runs").absolute() else f" --runs-dir {quote(str(runs_dir))}"
        return [f"yoked train --resume --run {quote(self.trains)}{where}{fleet_flag}"]

    @property
    def may_resume(self) -> bool:
        """Whether there is a run to go on with, as far as is known: one may end before it began."""
        first = self.host_of(0)
        # Where its host does not answer, nobody knows.
        return first is None or bool(self.hosts[first].get("can_resume"))

    @property
    def ranks(self) -> int:
        """Ranks of all hosts together."""
        return sum(int(node["ranks"]) for node in self.nodes)

    @property
    def started_s(self) -> float:
        """When it was prepared, by node 0's clock if that answered."""
        return float(self._first["started_s"] or 0.0)

    @property
    def ended_s(self) -> float | None:
        """When its last host ended; None while one has not."""
        ends = [told["ended_s"] for told in self.hosts.values()]
        return None if self.active or None in ends else max(ends)

    @property
    def attempt(self) -> int:
        """The attempt that runs, or was the last; the first is 0."""
        return max(int(told["attempt"]) for told in self.hosts.values())

    @property
    def earlier(self) -> dict[int, Mapping[str, Any]]:
        """What ended attempts that were followed by another one, by attempt; the first is 0."""
        found: dict[int, Mapping[str, Any]] = {}
        for told in self._by_node():
            for each in told.get("earlier") or ():
                found.setdefault(int(each["attempt"]), each["failure"])
        return dict(sorted(found.items()))

    @property
    def restarted_line(self) -> str | None:
        """Why a run that goes on was started again, in a line; None: it was not."""
        if not self.active or not self.earlier:
            return None
        attempt, cause = list(self.earlier.items())[-1]
        return f"attempt {attempt + 1} failed: {headline(cause)}"

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The first cause, if it failed: node 0's word before the others'."""
        told = [told["failure"] for told in self._by_node() if told["failure"]]
        # A rank's failure says more than that a launcher is gone.
        told.sort(key=lambda failure: failure.get("rank") is None)
        first: Mapping[str, Any] | None = told[0] if told else None
        if first is not None and first.get("kind") == HOST_LOST:
            # The others only know that it is gone; its own host saw how.
            own = self.hosts.get(str(first["host"]), {}).get("failure") or {}
            return own if own.get("kind") == LAUNCHER_ENDED else first
        return first

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The first cause of a run that failed, for programs; empty: it did not, or goes on."""
        failure = None if self.active else self.failure
        return [] if failure is None else [fault_of(failure)]

    @property
    def verdict(self) -> dict[str, Any] | None:
        """What is to be said of a run that failed, for programs; None: it did not."""
        return verdict_of(self.name, "failed", self.faults) if self.faults else None

    @property
    def held_up(self) -> list[Mapping[str, Any]]:
        """Why it does not get on, as its hosts find: each cause once, the root first."""
        if not self.active:
            return []
        found: dict[tuple[object, ...], Mapping[str, Any]] = {}
        for told in self._by_node():
            diagnosis: Mapping[str, Any] = told.get("diagnosis") or {}
            for cause in diagnosis.get("causes") or ():
                key = (cause["cause"], cause.get("rank"), *sorted(cause["hosts"]))
                found.setdefault(key, cause)
        return list(found.values())

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """What is wrong with it though it gets on or ended well, as its hosts find, as faults."""
        for told in self._by_node():
            diagnosis: Mapping[str, Any] = told.get("diagnosis") or {}
            # Of an earlier attempt, until this one has told.
            if diagnosis.get("warnings") and diagnosis.get("attempt") == self.attempt:
                return [held_up_by(each) for each in diagnosis["warnings"]]
        return []

    @property
    def held_up_line(self) -> str | None:
        """The root of what holds it up, in a line; None: nothing does, as far as can be told."""
        return fault_line(held_up_by(self.held_up[0])) if self.held_up else None

    @property
    def hung(self) -> bool:
        """Whether something keeps it from getting on at all, as its hosts find."""
        return bool(self.held_up) and self.held_up[0]["cause"] not in SLOW

    @property
    def no_step_because(self) -> str | None:
        """Why no step ends, in a line, as far as its hosts know: why it failed, if it did. None: it
        is not known.

        Of a training that is resumed, the first step is known from what its ranks are at.
        """
        if not self.active:
            return fault_line(self.faults[0]) if self.faults else None
        if self.held_up_line is not None:
            return self.held_up_line
        busy = self.busy[0] if self.busy else None
        said = "" if busy is None else f"rank {busy['rank']} on {named(busy['host'])} is "
        if busy is not None:
            said += f"{busy['doing']} for {format_duration(busy['for_s'])}"
        if self.trains and self.progress is None:
            return f"its first step is not done yet{said and f': {said}'}"
        return said or None

    @property
    def shares(self) -> Mapping[str, Any] | None:
        """Where its ranks' time goes, as its hosts find (diagnosis.gate.Shares)."""
        told = [(told.get("diagnosis") or {}).get("shares") for told in self._by_node()]
        return next((shares for shares in told if shares), None) if self.active else None

    @property
    def busy(self) -> list[dict[str, Any]]:
        """Ranks at something else than training, as their own hosts find (diagnosis.gate.Busy)."""
        found = []
        for host, told in self.hosts.items() if self.active else ():
            diagnosis: Mapping[str, Any] = told.get("diagnosis") or {}
            now_s, at_s = told.get("now_s"), diagnosis.get("time_s")
            since_s = 0.0 if now_s is None or at_s is None else max(0.0, now_s - at_s)
            for each in diagnosis.get("busy") or ():
                if self.host_of(each["rank"]) == host:
                    for_s = round(each["for_s"] + since_s, 1)
                    found.append({**each, "host": host, "for_s": for_s})
        return sorted(found, key=lambda each: each["rank"])

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """Step and loss, where the program is ours and has written some."""
        return next((told["progress"] for told in self._by_node() if told["progress"]), None)

    @property
    def refused(self) -> str | None:
        """How many connections that were not the run's node 0 refused; None: not any."""
        told: Mapping[str, Any] = self._first.get("refused") or {}
        count = told.get("connections")
        if not isinstance(count, int) or not count:
            return None
        were = f"{count} connection{'s' * (count != 1)} from outside the run"
        return (
            f"refused {were}; the last: {told['last']}" if told.get("last") else f"refused {were}"
        )

    def host_of(self, rank: int) -> str | None:
        """The name of the host that has this rank; None: it does not answer, or has none."""
        first = 0
        for number, node in enumerate(self.nodes):
            if first <= rank < first + int(node["ranks"]):
                found = [n for n, told in self.hosts.items() if told["node_rank"] == number]
                return found[0] if found else None
            first += int(node["ranks"])
        return None

    def _by_node(self) -> list[Mapping[str, Any]]:
        return sorted(self.hosts.values(), key=lambda told: int(told["node_rank"]))

    @property
    def _first(self) -> Mapping[str, Any]:
        return self._by_node()[0]


def headline(failure: Mapping[str, Any]) -> str:
    """Where and what: the first cause in one line or two."""
    where = place([str(failure.get("host", ""))], failure.get("rank"))
    return f"{where}: {failure.get('what', '')}"


def fault_line(fault: Mapping[str, Any]) -> str:
    """The same of a fault of a verdict (agent/verdict.py), with all hosts that may be to blame."""
    return f"{place(fault['hosts'], fault['rank'])}: {fault['evidence'][0]}"


def warning_lines(warning: Mapping[str, Any]) -> list[str]:
    """A warning of `Record.warnings`, and what to do, for people."""
    return [f"warning: {warning['evidence'][0]}", *(f"  fix: {line}" for line in warning["fix"])]


def collect(
    clients: Mapping[str, AgentClient], *, sizes: bool = False
) -> tuple[list[Record], dict[str, YokedError]]:
    """The runs of all hosts, the newest first; and the hosts that gave no answer."""
    told, failures = map_hosts(lambda client: client.call("job_list", sizes=sizes), clients)
    return join(told), failures


def ask_state(
    clients: Mapping[str, AgentClient],
    run: str,
    launch_id: str | None,
    *,
    timeout_s: float = DEADLINE_S,
    hasty: Container[str] = (),
) -> tuple[dict[str, Mapping[str, Any]], dict[str, YokedError]]:
    """What each host tells of a run, and the hosts that gave no answer.

    launch_id: of the run that is meant, as a host may have an older one of this name; None: any.
    timeout_s: how long a host may take; those that are hasty have a second.
    """

    def ask(client: AgentClient) -> Mapping[str, Any]:
        limit_s = _HASTY_S if client.host in hasty else timeout_s
        status: Mapping[str, Any] = client.call("job_status", run=run, timeout_s=limit_s)
        return status

    told, failures = map_hosts(ask, clients)
    ours = {h: status for h, status in told.items() if launch_id in (None, status["launch_id"])}
    return ours, failures


def joined(
    run: str, told: Mapping[str, Mapping[str, Any]], failures: Mapping[str, YokedError]
) -> Record:
    """The record of what `ask_state` gave. Raises YokedError where no host tells of the run."""
    if records := join({host: [status] for host, status in told.items()}):
        return records[0]
    problem = next(iter(failures.values()), None)
    raise problem or JobError(f"there is no run {run} on these hosts", fix="yoked runs")


def join(told: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Record]:
    """Records out of each host's jobs, the newest first.

    By launch id as well as by name: a host may have an older run of the same name.
    """
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for host, jobs in told.items():
        for job in jobs:
            # A folder in the making has no spec yet; it is whoever makes it that knows of it.
            if job["nodes"]:
                found.setdefault((job["run"], job["launch_id"]), {})[host] = job
    records = [Record(run, launch_id, hosts) for (run, launch_id), hosts in found.items()]
    return sorted(records, key=lambda record: record.started_s, reverse=True)


def job_name(run: str, is_taken: Callable[[str], bool]) -> str:
    """A name that no job has: the run's, with a number where that had a start already.

    It names the folder of the job on each host.
    """
    stem = run[:_LONGEST_NAME]
    name, number = stem, 2
    while is_taken(name):
        name, number = f"{stem}.{number}", number + 1
    return name


def newest_starts(records: Iterable[Record]) -> list[Record]:
    """One record for each run: that of the start that goes on, else of the newest."""
    found: dict[object, Record] = {}
    for record in records:
        key: object = record.run
        if record.trains:
            key = (record.trains, record.run_dir, record.nodes[0]["host"])
        if record.active and key in found and not found[key].active:
            found[key] = record
        found.setdefault(key, record)
    return list(found.values())


def without_job(folders: Iterable[Path], records: Iterable[Record]) -> list[Path]:
    """Those of a folder of runs that none of the records tells of."""
    # A run of this machine is known by its folder, one of a fleet's may have been brought home.
    known = {record.run_dir or record.name for record in records}
    return [each for each in folders if known.isdisjoint((str(each.resolve()), each.name))]


def newest_training(records: Iterable[Record]) -> str | None:
    """The run of `yoked train` that hosts of a fleet began last, and that goes on or can be
    resumed; None: none. records: theirs.
    """
    for record in newest_starts(records):
        # One of this machine alone is no fleet's, though it may be a host of it.
        if record.trains and record.run_dir is None and (record.active or record.may_resume):
            return record.name
    return None


def pick(records: Iterable[Record], named: str | None) -> Record:
    """The run of a name; None: the newest that runs, else the newest. Raises UsageError.

    Of several starts of one run it is the one that goes on, else the newest; of runs of one name
    in several folders that of ./runs.
    """
    known = list(records)
    if named is None:
        if not known:
            raise UsageError(
                "there is no run on these hosts",
                fix=("yoked train", "yoked run -- SCRIPT.py    starts a program of your own"),
            )
        return next((record for record in known if record.active), known[0])
    called = [record for record in known if named in (record.name, record.run)]
    here = str(Path("runs", named).resolve())
    called = [record for record in called if record.run_dir == here] or called
    if called:
        return next((record for record in called if record.active), called[0])
    near = difflib.get_close_matches(named, [record.name for record in known], n=1)
    raise UsageError(
        f"there is no run {named!r} on these hosts",
        fix=f"did you mean {near[0]}?" if near else "yoked runs",
    )

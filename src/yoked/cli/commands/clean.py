"""`yoked clean`: what runs left behind, shown first and then removed."""

from __future__ import annotations

import contextlib
import math
import shlex
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.core.fs import abandoned_scratch, remove_abandoned_scratch
from yoked.core.parallel import at_once
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.handle import REMOVE_S
from yoked.launch.hosts import Hosts, reach_hosts
from yoked.remote.ssh import control_folder
from yoked.text import one_line
from yoked.units import format_bytes, format_duration, parse_duration_s, plural
from yoked.workflows.probe_job import WORKER

# Of a run, to programs.
_TOLD = ("run", "state", "folder", "size_bytes", "outputs_there")
# As the agents of hosts tell it, by host.
Found = dict[str, list[dict[str, Any]]]
OLD = "7 d"
# Clocks of a fleet that differ by more are not both right, and then no age can be told.
_SAME_CLOCK_S = 3600.0


@dataclass
class Litter:
    """What was left. Each is as the host's agent tells it; jobs are those that can go, compiled is
    what no run has used for as long.
    """

    processes: Found = field(default_factory=dict)
    shared_memory: Found = field(default_factory=dict)
    jobs: Found = field(default_factory=dict)
    half_removed: Found = field(default_factory=dict)
    replaced_data: Found = field(default_factory=dict)
    compiled: Found = field(default_factory=dict)
    control_sockets: list[Path] = field(default_factory=list)
    scratch: list[Path] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Each thing in a line, for people."""
        found = []
        for host, one in _each(self.processes):
            ports = ", ".join(map(str, one["ports"]))
            listens = f", listening on {ports}" if ports else ""
            command = one_line(one["command"])
            found.append(f"{host}: process {one['pid']} of run {one['run']}{listens}: {command}")
        for host, one in _each(self.shared_memory):
            size = format_bytes(one["size_bytes"])
            found.append(f"{host}: shared memory {one_line(one['name'])}, {size}")
        for host, one in _each(self.jobs):
            age, size = _age(one), format_bytes(one["size_bytes"])
            found.append(f"{host}: run {one['run']}, {one['state']}{age}: {one['folder']}, {size}")
            if outputs := one.get("outputs_there"):
                files = plural(outputs["files"], "file")
                patterns, size = ", ".join(one["outputs"]), format_bytes(outputs["size_bytes"])
                found[-1] += f", with outputs ({patterns}: {files}, {size})"
        for host, one in _each(self.half_removed):
            size = format_bytes(one["size_bytes"])
            found.append(f"{host}: half removed: {one['folder']}, {size}")
        for host, one in _each(self.replaced_data):
            size = format_bytes(one["size_bytes"])
            found.append(f"{host}: data that a later push replaced: {one['folder']}, {size}")
        for host, one in _each(self.compiled):
            size, unused = format_bytes(one["size_bytes"]), format_duration(one["unused_s"])
            folder = one_line(one["folder"])
            found.append(f"{host}: compiled code, unused for {unused}: {folder}, {size}")
        found += [f"here: dead connection {path}" for path in self.control_sockets]
        return found + [f"here: left by a command that was killed: {path}" for path in self.scratch]

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "processes": self.processes,
            "shared_memory": self.shared_memory,
            "runs": {
                host: [{name: job.get(name) for name in _TOLD} for job in each]
                for host, each in self.jobs.items()
            },
            "half_removed": self.half_removed,
            "replaced_data": self.replaced_data,
            "compiled": self.compiled,
            "control_sockets": [str(path) for path in self.control_sockets],
            "scratch": [str(path) for path in self.scratch],
        }


def command(
    run: Annotated[
        str | None, Parameter(help="A run that is over, to remove it alone, of whatever age.")
    ] = None,
    *,
    fleet: FleetFlag = None,
    older_than: Annotated[
        str, Parameter(help="Runs that ended so long ago, such as 12 h, count as old.")
    ] = OLD,
    yes: Annotated[bool, Parameter(help="Do it without asking.", negative="")] = False,
    json_output: JsonFlag = False,
) -> int:
    """Show what runs left on the hosts, and remove it after a yes.

    Stale processes and their ports, shared memory, runs that never began, what is half removed,
    data that a later `yoked push` replaced, what torch.compile made that no run has used for as
    long, and the logs and copied programs of old runs, with outputs that lie in them: `yoked fetch`
    brings those first. What `yoked train` learned (runs/) stays. Only what carries the mark of a
    launch of ours, or lies in our own folders, is looked at.
    """
    age_s = parse_duration_s(older_than, "--older-than")
    output = Output(json_mode=json_output)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        litter = _look(hosts, age_s, output) if run is None else _look_at(hosts, run, fleet)
        lines = litter.lines()
        wanted = bool(lines) and (yes or output.agrees("Remove all of this?", lines))
        if wanted:
            _remove(hosts, litter)
        unreachable = bool(hosts.unreachable)
    told = {**litter.to_dict(), "removed": wanted}
    if not lines:
        output.result(told, verdict="nothing was left behind")
    elif wanted:
        output.result(told, verdict="removed:", evidence=lines)
    else:
        words = [] if run is None else [run]
        if older_than != OLD:
            words += ["--older-than", older_than]
        # Removes what was shown, from those hosts.
        again = shlex.join(["yoked", "clean", *words]) + f"{same_fleet(fleet)} --yes"
        output.result(told, verdict="would remove:", evidence=lines, next_commands=[again])
    return 1 if unreachable else 0


def _look(hosts: Hosts, age_s: float, output: Output) -> Litter:
    litter = Litter(
        control_sockets=list(dead_sockets(control_folder().iterdir())),
        scratch=list(abandoned_scratch()),
    )
    reaped = hosts.ask("job_reap")
    litter.processes = {host: each["processes"] for host, each in reaped.items()}
    litter.shared_memory = {host: each["shared_memory"] for host, each in reaped.items()}
    litter.half_removed = hosts.ask("job_sweep")
    litter.replaced_data = hosts.ask("pushed_sweep")
    for host, found in hosts.ask("compiled_list").items():
        litter.compiled[host] = [one for one in found if one["unused_s"] > age_s]
    for host, jobs in hosts.ask("job_list", sizes=True).items():
        wrong = any(abs(job["now_s"] - time.time()) > _SAME_CLOCK_S for job in jobs)
        litter.jobs[host] = [job for job in jobs if _can_go(job, math.inf if wrong else age_s)]
        if wrong:
            output.note(
                f"the clock of {host} is not the one here: no run there is taken for old. "
                "Set the clocks, or name a run: yoked clean RUN"
            )
    return litter


def _look_at(hosts: Hosts, run: str, fleet: Path | None) -> Litter:
    """One run. Raises UsageError for one that is not there, or is not over."""
    record = hosts.run(run).record
    if record.active:
        raise UsageError(f"run {run} is {record.state}", fix=f"yoked stop {run}{same_fleet(fleet)}")
    litter = Litter()
    # Each of its starts is a job.
    starts = {
        other.launch_id
        for other in hosts.records()
        if (other.name, other.run_dir) == (record.name, record.run_dir)
    }
    litter.jobs = {
        host: [job for job in jobs if job["launch_id"] in starts]
        for host, jobs in hosts.ask("job_list", sizes=True).items()
    }
    return litter


def _can_go(job: dict[str, Any], age_s: float) -> bool:
    """Whether a job never began, or ended so long ago by its own host's clock.

    A measurement that came to its end was removed by its command, unless that was killed.
    """
    if job["state"] in ("running", "prepared"):
        return False
    program = job["program"] or {}
    if program.get("name") == WORKER and job["state"] == "finished":
        return True
    never_began = job["host_program"] is None and job["end"] is None
    last_s = job["ended_s"] or job["started_s"]
    return never_began or (last_s is not None and job["now_s"] - last_s > age_s)


def _remove(hosts: Hosts, litter: Litter) -> None:
    """Remove it, on all hosts at once; each checks again what is still so."""

    def act(host: str) -> None:
        client = hosts.clients[host]
        if litter.processes.get(host) or litter.shared_memory.get(host):
            client.call("job_reap", kill=True)
        for job in litter.jobs.get(host, ()):
            client.call(
                "job_remove", run=job["run"], launch_id=job["launch_id"], timeout_s=REMOVE_S
            )
        if litter.half_removed.get(host):
            client.call("job_sweep", remove=True, timeout_s=REMOVE_S)
        if litter.replaced_data.get(host):
            client.call("pushed_sweep", remove=True, timeout_s=REMOVE_S)
        for one in litter.compiled.get(host, ()):
            client.call("compiled_remove", label=one["label"], timeout_s=REMOVE_S)

    at_once(act, hosts.clients)
    for path in litter.control_sockets:
        path.unlink(missing_ok=True)
    if litter.scratch:
        remove_abandoned_scratch()


def dead_sockets(paths: Iterable[Path]) -> Iterable[Path]:
    """Sockets of shared ssh connections on which nobody listens any more."""
    for path in paths:
        if not path.is_socket():
            continue
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                yield path


def _each(by_host: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((host, one) for host, found in by_host.items() for one in found)


def _age(job: dict[str, Any]) -> str:
    if job["ended_s"] is None:
        return ""
    return f", ended {format_duration(max(0.0, job['now_s'] - job['ended_s']))} ago"

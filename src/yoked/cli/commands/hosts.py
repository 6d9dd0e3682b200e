"""`yoked hosts`: the hosts of a fleet as they are now, in the words that `yoked init` has too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from yoked.cli.flags import FleetFile, JsonFlag
from yoked.cli.output import Output
from yoked.core.parallel import at_once
from yoked.errors import HostError, YokedError
from yoked.fleet.choose import Choice
from yoked.fleet.discover import require_distinct
from yoked.fleet.file import open_fleet
from yoked.fleet.model import Fleet, Host
from yoked.launch.environment import environment_python, host_versions
from yoked.launch.hosts import Hosts, reach_hosts
from yoked.remote.client import AgentClient
from yoked.table import table
from yoked.units import format_bit_per_s, format_bytes

T = TypeVar("T")
_PACKAGES = ("torch", "yoked", "numpy")
_FACTS = ("host", "CPU", "cores", "memory", "GPU", "torch")


def command(*, fleet: FleetFile = None, json_output: JsonFlag = False) -> int:
    """Show the hosts of a fleet: CPU, memory, GPUs, torch, interface, free disk.

    A host that does not answer is shown with ssh's own reason, and the exit status is 1.
    """
    output = Output(json_mode=json_output)
    wanted = open_fleet(fleet)
    with reach_quietly(wanted) as hosts:
        seen = ask_all(hosts, look)
    there = {name: each for name, each in seen.items() if not isinstance(each, YokedError)}
    require_distinct({name: each.facts for name, each in there.items()})
    output.result(
        {
            "ok": len(there) == len(seen),
            "fleet": wanted.name,
            "hosts": [payload(host, seen[host.name]) for host in wanted.hosts],
        },
        verdict=f"fleet {wanted.name}: {len(there)} of {len(seen)} hosts are up",
        evidence=hosts_lines(wanted.hosts, seen),
        next_commands=_next(wanted, list(there.values())),
    )
    return 0 if len(there) == len(seen) else 1


def _next(fleet: Fleet, there: Sequence[Look]) -> list[str]:
    if any(each.torch is None for each in there):
        return [f"yoked install{fleet.flag}"]
    if len(fleet.hosts) > 1 and any(host.interface is None for host in fleet.hosts):
        return [f"yoked init --force{fleet.flag}    finds out which interfaces they can use"]
    return []


@dataclass(frozen=True)
class Look:
    """A host as it is now. python: what trains there; versions: of its packages, None: missing.

    no_python: why there is no interpreter that trains.
    """

    facts: Mapping[str, Any]
    interfaces: Sequence[Mapping[str, Any]]
    python: str | None
    versions: Mapping[str, str | None]
    no_python: str = ""

    @property
    def torch(self) -> str | None:
        """Its version of torch, if any."""
        return self.versions.get("torch")


def look(host: Host, client: AgentClient) -> Look:
    """Ask a host for its facts, interfaces and versions. Raises HostError when it is silent."""
    facts, interfaces = client.call("facts"), client.call("interfaces")
    try:
        python = environment_python(client, host)
        versions = host_versions(client, python, _PACKAGES).packages
    except HostError as problem:
        return Look(facts, interfaces, None, {}, problem.what)
    return Look(facts, interfaces, python, versions)


def reach_quietly(fleet: Fleet) -> AbstractContextManager[Hosts]:
    """Agents on the hosts of a fleet; why others have none is shown later, with what these say."""
    return reach_hosts(fleet, lambda _: None)


def ask_all(hosts: Hosts, ask: Callable[[Host, AgentClient], T]) -> dict[str, T | YokedError]:
    """Ask all hosts at once; what each said, or why it did not, in the order of the fleet."""
    clients, found = hosts.clients, dict[str, T | YokedError](hosts.unreachable)

    def act(host: Host) -> None:
        try:
            found[host.name] = ask(host, clients[host.name])
        except YokedError as problem:
            found[host.name] = problem

    # Ctrl-C closes the agents, which end what they do, such as pip.
    at_once(act, [host for host in hosts.fleet.hosts if host.name in clients], leave=True)
    return {host.name: found[host.name] for host in hosts.fleet.hosts}


def payload(host: Host, seen: Look | YokedError, choice: Choice | None = None) -> dict[str, Any]:
    """A host for programs."""
    if isinstance(seen, YokedError):
        return {"name": host.name, "up": False, "what": seen.what, "fix": list(seen.fix)}
    return {
        "name": host.name,
        "up": True,
        "ranks": host.ranks,
        "device": host.device,
        "python": seen.python,
        "versions": dict(seen.versions),
        "interface": choice.interface if choice else host.interface,
        "address": choice.address if choice else address_today(host, seen),
        "rtt_s": choice.rtt_s if choice else None,
        "goodput_bytes_per_s": choice.goodput_bytes_per_s if choice else None,
        "facts": dict(seen.facts),
        "interfaces": list(seen.interfaces),
    }


def address_today(host: Host, seen: Look) -> str | None:
    """The address that the host's interface has now: leases change."""
    named = (each for each in seen.interfaces if each["name"] == host.interface)
    return next((each["gloo_address"] for each in named), None)


def facts_cells(host: Host, seen: Look) -> list[str]:
    """host, CPU, cores, memory, GPU, torch."""
    facts = seen.facts
    memory_bytes = facts["memory_bytes"]
    return [
        host.name,
        facts["cpu_model"],
        cores_text(facts),
        "unknown" if memory_bytes is None else format_bytes(memory_bytes),
        gpus_text(facts["gpus"]),
        seen.torch or "none",
    ]


def cores_text(facts: Mapping[str, Any]) -> str:
    """`8`, `4+8` for fast and slow ones, `2 of 16` under a quota or an affinity."""
    cores, fast, usable = facts["cores"], facts["fast_cores"], facts["usable_cores"]
    if usable < fast:
        return f"{usable} of {cores}"
    return f"{fast}+{cores - fast}" if fast < cores else str(cores)


def gpus_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """`none`, or the names with their numbers."""
    names = [str(gpu["name"]) for gpu in gpus]
    counts = {name: names.count(name) for name in names}
    texts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return ", ".join(texts) or "none"


def init_lines(
    hosts: Sequence[Host], seen: Mapping[str, Look], choices: Mapping[str, Choice]
) -> list[str]:
    """What `yoked init` shows: facts, and the link that was proved."""
    rows = []
    for host in hosts:
        choice = choices.get(host.name)
        rate = choice.goodput_bytes_per_s if choice else None
        rows.append(
            [
                *facts_cells(host, seen[host.name]),
                f"{choice.interface} {choice.address}" if choice else "not needed",
                format_bit_per_s(8 * rate) if rate else "",
            ]
        )
    return table((*_FACTS, "interface", "measured"), rows)


def hosts_lines(hosts: Sequence[Host], seen: Mapping[str, Look | YokedError]) -> list[str]:
    """What `yoked hosts` shows: a row for each, and below it why one is not there."""
    rows, below = [], []
    for host in hosts:
        found = seen[host.name]
        if isinstance(found, YokedError):
            rows.append([host.name, "down"])
            below += [*found.what.splitlines(), *(f"fix: {line}" for line in found.fix)]
            continue
        where = "not needed"
        if len(hosts) > 1:
            # With its address of today.
            at = address_today(host, found) or "is not up"
            where = "not chosen" if host.interface is None else f"{host.interface} {at}"
        free = format_bytes(found.facts["free_bytes"]["state"])  # where runs are kept
        rows.append([*facts_cells(host, found), where, free])
        if found.no_python:
            below.append(found.no_python)
    return [*table((*_FACTS, "interface", "free disk"), rows), *below]

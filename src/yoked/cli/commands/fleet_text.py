"""What `yoked init` and `yoked hosts` say of hosts: plain data, and rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yoked.core.parallel import at_once
from yoked.errors import HostError, YokedError
from yoked.table import table
from yoked.units import format_bit_per_s, format_bytes

if TYPE_CHECKING:
    from yoked.fleet.choose import Choice
    from yoked.fleet.model import Host
    from yoked.remote.client import AgentClient


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


_PACKAGES = ("torch", "yoked", "numpy")


def look(host: Host, client: AgentClient) -> Look:
    """Ask a host for its facts, interfaces and versions. Raises HostError when it is silent."""
    from yoked.launch.environment import environment_python, host_versions

    facts, interfaces = client.call("facts"), client.call("interfaces")
    try:
        python = environment_python(client, host)
        versions = host_versions(client, python, _PACKAGES).packages
    except HostError as problem:
        return Look(facts, interfaces, None, {}, problem.what)
    return Look(facts, interfaces, python, versions)


def look_at_all(
    hosts: Sequence[Host], clients: Mapping[str, AgentClient]
) -> dict[str, Look | YokedError]:
    """Ask all hosts that are connected at once; what each said, or why it did not."""

    def ask(host: Host) -> Look | YokedError:
        try:
            return look(host, clients[host.name])
        except YokedError as problem:
            return problem

    connected = [host for host in hosts if host.name in clients]
    return dict(zip((host.name for host in connected), at_once(ask, connected), strict=True))


def payload(host: Host, seen: Look, choice: Choice | None = None) -> dict[str, Any]:
    """A host for programs."""
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


FACTS_HEADINGS = ("host", "CPU", "cores", "memory", "GPU", "torch")


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
    return table((*FACTS_HEADINGS, "interface", "measured"), rows)


def hosts_lines(hosts: Sequence[Host], seen: Mapping[str, Look | YokedError]) -> list[str]:
    """What `yoked hosts` shows: a row for each, and below it why one is not there."""
    rows, below = [], []
    for host in hosts:
        found = seen[host.name]
        if isinstance(found, YokedError):
            rows.append([host.name, "down"])
            below += [*found.what.splitlines(), *fixes(found)]
            continue
        where = interface_text(host, found) if len(hosts) > 1 else "not needed"
        rows.append([*facts_cells(host, found), where, disk_text(found)])
        if found.no_python:
            below.append(found.no_python)
    width = len(FACTS_HEADINGS) + 2
    filled = [[*row, *[""] * (width - len(row))] for row in rows]
    return [*table((*FACTS_HEADINGS, "interface", "free disk"), filled), *below]


def interface_text(host: Host, seen: Look) -> str:
    """The interface of the file with its address of today."""
    if host.interface is None:
        return "not chosen"
    return f"{host.interface} {address_today(host, seen) or 'is not up'}"


def disk_text(seen: Look) -> str:
    """Free space where runs are kept."""
    return format_bytes(seen.facts["free_bytes"]["state"])


def fixes(problem: YokedError) -> list[str]:
    """The fix lines of a failure."""
    return [f"fix: {line}" for line in problem.fix]

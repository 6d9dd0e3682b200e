"""The hosts of a fleet as they are now: what each says of itself, all asked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from yoked.core.parallel import at_once
from yoked.errors import HostError, YokedError
from yoked.fleet.model import Fleet, Host
from yoked.launch.environment import environment_python, host_versions, torch_fix
from yoked.launch.hosts import Hosts, reach_hosts
from yoked.remote.client import AgentClient

T = TypeVar("T")
_PACKAGES = ("torch", "yoked", "numpy")


@dataclass(frozen=True)
class Look:
    """A host as it is now. python: what trains there; versions: of its packages, None: missing.

    no_python: why there is no interpreter that trains; fix: what to do about that.
    """

    facts: Mapping[str, Any]
    interfaces: Sequence[Mapping[str, Any]]
    python: str | None
    versions: Mapping[str, str | None]
    no_python: str = ""
    fix: tuple[str, ...] = ()

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
        return Look(facts, interfaces, None, {}, problem.what, problem.fix)
    return Look(facts, interfaces, python, versions)


def torch_lines(hosts: Sequence[Host], seen: Mapping[str, Look], flag: str) -> list[str]:
    """What brings torch to the hosts that have none. flag: the fleet's, for lines of yoked's.

    `yoked install` leaves an interpreter that the fleet's file names as it is.
    """
    wanted = next((each.torch for each in seen.values() if each.torch is not None), None)
    lacking = [host for host in hosts if host.name in seen and seen[host.name].torch is None]
    lines = [f"yoked install{flag}"] if any(host.python is None for host in lacking) else []
    for host in lacking:
        if host.python is not None:
            ways = seen[host.name].fix or torch_fix(host, wanted, flag)
            lines += [line.removeprefix("or ") for line in ways]
    return lines


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

"""Environments on all hosts of a fleet at once: what would be made, making it, removing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yoked.console import HostsProgress
from yoked.errors import YokedError
from yoked.fleet.model import Host
from yoked.launch.environment import package_names
from yoked.launch.hosts import Hosts
from yoked.launch.install import (
    HostEnvironment,
    InstallOptions,
    InstallPlan,
    check_environment,
    environments_of,
    make_environment,
    plan_environment,
)
from yoked.remote.client import AgentClient
from yoked.units import listed
from yoked.workflows.looks import ask_all

# By host: how it stands, what would be made on it, or why neither is known.
Found = Mapping[str, HostEnvironment | YokedError]
Planned = Mapping[str, HostEnvironment | InstallPlan | YokedError]


def check_all(hosts: Hosts, requirements: Sequence[str]) -> Found:
    """How all hosts stand; nothing is changed."""
    return ask_all(hosts, lambda host, client: check_environment(client, host, requirements))


def plan_all(hosts: Hosts, wishes: InstallOptions, say: Callable[[str], None]) -> Planned:
    """What would be made on all hosts; nothing is changed."""
    return ask_all(hosts, lambda host, client: plan_environment(client, host, wishes, say))


def make_all(
    hosts: Hosts,
    planned: Planned,
    wishes: InstallOptions,
    say: Callable[[str], None],
    progress: HostsProgress,
) -> Found:
    """Make what was planned on all hosts at once; how each stands then."""

    def act(host: Host, client: AgentClient) -> HostEnvironment:
        plan = planned[host.name]
        if isinstance(plan, YokedError):
            raise plan
        if isinstance(plan, HostEnvironment):
            return plan
        return make_environment(client, host, plan, wishes, say, _OfHost(host.name, progress))

    return ask_all(hosts, act)


def unlike_versions(found: Found, added: Sequence[str]) -> list[str]:
    """A line for each package of a person's own that hosts have in unlike versions."""
    there = {name: each for name, each in found.items() if isinstance(each, HostEnvironment)}
    lines = []
    for package in dict.fromkeys(package_names(added)):
        hosts: dict[str, list[str]] = {}
        for name, each in there.items():
            hosts.setdefault(each.packages.get(package) or "missing", []).append(name)
        if len(hosts) > 1:
            has = ", ".join(f"{version} on {listed(names)}" for version, names in hosts.items())
            lines.append(f"{package} is {has}: a line {package}==VERSION makes it one")
    return lines


def remove_all(hosts: Hosts, *, really: bool) -> Mapping[str, list[dict[str, Any]] | YokedError]:
    """The environments that install made on all hosts, by host; they go where `really`."""
    return ask_all(hosts, lambda _, client: environments_of(client, remove=really))


@dataclass(frozen=True)
class _OfHost:
    """The progress of one host among several."""

    host: str
    progress: HostsProgress

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """As of `HostsProgress`."""
        self.progress.update(self.host, stage, done, total, unit)

"""Make, or check, the environment that trains on a host."""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from yoked.core.faults import fault
from yoked.fleet.devices import torch_index, training_gpus, usable_gpus
from yoked.fleet.model import Host
from yoked.launch.blobs import Progress, push_blobs
from yoked.launch.environment import (
    Difference,
    differences,
    environment_python,
    host_versions,
    package_names,
    trains_here,
)
from yoked.launch.requirement_files import constraints
from yoked.launch.requirements import requirements_digest
from yoked.launch.wheels import WheelSizes, fetch_wheels, wheel_sizes
from yoked.remote.client import AgentClient
from yoked.units import format_bytes, listed, plural

Build = Literal["cpu", "cuda"]
# pip is silent while it unpacks a wheel of 2 GB on a slow disk.
_SILENCE_S = 900.0
# Hosts share this machine's: one after another is as fast.
_CABLE = threading.Lock()


@dataclass(frozen=True)
class InstallOptions:
    """How environments are made.

    requirements: lines for pip. build: None: cuda where there is a GPU that a build runs on.
    torch_index: where pip also looks in place of PyTorch's own index, on hosts that get that kind
    of build, or on all if a build is asked for. python: the base instead of the best one found.
    offline: send wheels at once. anew: although there is one. added: lines of a person's own, for
    what is installed besides; what the requirements pin stays as it is.
    """

    requirements: Sequence[str]
    build: Build | None = None
    torch_index: str | None = None
    python: str | None = None
    offline: bool = False
    anew: bool = False
    added: Sequence[str] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """What a host has to have."""
        return (*self.requirements, *self.added)


@dataclass(frozen=True)
class HostEnvironment:
    """The environment of a host, as it is now.

    state: `made` now, `present` before, or `named` in yoked.toml, which is never changed.
    torch_build: cpu, cuda or rocm; None: not known. packages: {name: version, or None}.
    """

    host: str
    python: str
    python_version: str
    state: Literal["made", "present", "named"]
    differences: tuple[Difference, ...]
    torch_build: str | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)


def check_environment(
    client: AgentClient, host: Host, requirements: Sequence[str]
) -> HostEnvironment:
    """Look at what would train on a host, and change nothing. Raises HostError if there is none."""
    python = environment_python(client, host)
    return _look(client, host, python, requirements, "present" if host.python is None else "named")


@dataclass(frozen=True)
class InstallPlan:
    """What would be made on a host. base: what its agent answered to `environment_base`; build,
    index: of torch, and where pip also looks for it. size: of what is fetched; None: not known.
    kept: the Python of the environment that is there, into which only `added` comes.
    """

    host: str
    base: Mapping[str, Any]
    build: Build
    index: str | None
    size: WheelSizes | None
    kept: str | None = None

    @property
    def lines(self) -> tuple[str, str]:
        """How much it is, and what, for people."""
        where = f" from {self.index}" if self.index else ""
        amount = "of a size that no index told" if self.size is None else str(self.size)
        python = f"Python {self.base['version']} at {self.base['python']}"
        if self.kept is not None:
            what = f"  into the environment that is there, for {python}"
            return (f"{self.host}: {amount}, downloaded there or sent from here", what)
        return (
            f"{self.host}: {amount}, downloaded there or sent from here",
            f"  torch for {self.build}{where}, for {python}",
        )


def plan_environment(
    client: AgentClient, host: Host, wishes: InstallOptions, say: Callable[[str], None]
) -> HostEnvironment | InstallPlan:
    """What would be made on a host, or what is there already. Changes nothing. Raises HostError."""
    if host.python is not None or trains_here(host):
        return check_environment(client, host, wishes.all)
    digest = requirements_digest(wishes.requirements)
    there = client.call("environment", digest=digest, configured=None)
    kept = there["marker"] is not None and wishes.build in (None, there["marker"]["build"])
    made = there["made"] if kept and not wishes.anew else None
    if made is not None:
        found = _look(client, host, made, wishes.all, "present")
        # A version says nothing of the extras that came with it.
        has_extras = any("[" in line for line in wishes.added)
        if not wishes.added or not (found.differences or has_extras):
            return found
        wishes = replace(wishes, build=there["marker"]["build"], python=made)
    base = client.call(
        "environment_base",
        named=wishes.python,
        minor=".".join(platform.python_version_tuple()[:2]),
        timeout_s=_SILENCE_S,
    )
    build, index = _choose_build(host, client.call("facts"), wishes, say)
    size = wheel_sizes(base, wishes.all, _pip_options(index), _there(made, wishes))
    return InstallPlan(host.name, base, build, index, size, made)


def _there(made: str | None, wishes: InstallOptions) -> frozenset[str]:
    """The packages that an environment has which is there: what trains, by canonical name."""
    from packaging.utils import canonicalize_name

    names = () if made is None else package_names(wishes.requirements)
    return frozenset(map(canonicalize_name, names))


def make_environment(
    client: AgentClient,
    host: Host,
    plan: InstallPlan,
    wishes: InstallOptions,
    say: Callable[[str], None],
    progress: Progress | None = None,
) -> HostEnvironment:
    """Make what was planned. Raises HostError. progress: gets one stage at a time."""
    build, index = plan.build, plan.index
    python = _make(client, plan, wishes, say, progress)
    made = _look(client, host, python, wishes.all, "made")
    if index is not None and {build, made.torch_build} == {"cpu", "cuda"}:
        say(f"{host.name}: torch came for {made.torch_build}: pip there found none at {index}")
    return made


def _choose_build(
    host: Host, facts: Mapping[str, Any], wishes: InstallOptions, say: Callable[[str], None]
) -> tuple[Build, str | None]:
    """The kind of torch for a host, and where pip also looks for it: of equal versions, it takes
    the one that bears the name of a build. None: the host's own index alone.
    """
    cards = usable_gpus(facts, {})
    fitting = torch_index(cards)
    trains = bool(training_gpus(host.device, facts, {}))
    if trains and fitting is None and wishes.build is None:
        names = dict.fromkeys(f"{card['name']} (driver {card.get('driver')})" for card in cards)
        say(
            f"{host.name}: no build of torch runs on {listed(names)}: it gets the CPU's; with a "
            f"newer driver, yoked install --cuda --host {host.name} brings another"
        )
    build: Build = wishes.build or ("cuda" if trains and fitting else "cpu")
    own = wishes.torch_index
    if own is not None and (wishes.build is not None or _kind_of(own) == build):
        return build, own
    if facts.get("os") != "Linux":
        # A Mac has one build, that of PyPI.
        return build, None
    # For a GPU that is asked for and not seen, the newest.
    return build, torch_index(() if build == "cpu" else cards or [{}])


def _pip_options(index: str | None) -> list[str]:
    return [] if index is None else ["--extra-index-url", index]


def _make(
    client: AgentClient,
    plan: InstallPlan,
    wishes: InstallOptions,
    say: Callable[[str], None],
    progress: Progress | None,
) -> str:
    """Make it from the host's index, else from wheels that are sent; returns its interpreter."""
    options = _pip_options(plan.index)
    order: dict[str, Any] = {
        "digest": requirements_digest(wishes.requirements),
        "python": plan.base["python"],
        "requirements": list(wishes.requirements),
        "options": options,
        "build": plan.build,
        "anew": wishes.anew,
        "added": list(wishes.added),
        "constraints": list(constraints(wishes.requirements)) if wishes.added else [],
    }
    size_bytes = None if plan.size is None else plan.size.known_bytes
    if not wishes.offline:
        made = _order(client, order, progress, size_bytes)
        if "made" in made:
            return str(made["made"])
        say(f"{client.host}: pip there reaches no index; fetching its wheels here")
    there = _there(plan.kept, wishes)
    wheels = fetch_wheels(client.host, plan.base, wishes.all, options, progress, size_bytes, there)
    with _CABLE:
        sent_bytes = push_blobs(client, wheels, progress)
    say(f"{client.host}: {plural(len(wheels), 'wheel')} there, {format_bytes(sent_bytes)} sent")
    names = [[path.name, sha256] for sha256, path in wheels.items()]
    order = {**order, "options": [], "wheels": names}
    return str(_order(client, order, progress, None)["made"])


def _order(
    client: AgentClient,
    order: dict[str, Any],
    progress: Progress | None,
    size_bytes: int | None,
) -> dict[str, Any]:
    """Have an environment made; what the agent said at the end. size_bytes: of what comes."""
    for part in client.stream("environment_make", timeout_s=_SILENCE_S, **order):
        told = part.content
        if "stage" in told and progress is not None:
            total = told["total"] or size_bytes
            # Of what else pip keeps there, an estimate may know nothing.
            done = told["done"] if total is None else min(told["done"], total)
            progress.update(str(told["stage"]), done, total, "bytes")
        elif "line" not in told and "stage" not in told:
            return dict(told)
    raise fault("install-silent", host=client.host)


def _kind_of(index: str) -> Build:
    """The builds that an index has by its name, as PyTorch names its own; else the CPU's."""
    name = index.rstrip("/").rpartition("/")[2]
    return "cuda" if re.fullmatch(r"cu\d+", name) else "cpu"


def _look(
    client: AgentClient,
    host: Host,
    python: str,
    requirements: Sequence[str],
    state: Literal["made", "present", "named"],
) -> HostEnvironment:
    found = host_versions(client, python, package_names(requirements))
    differing = tuple(differences(requirements, found))
    build = found.torch.get("build")
    return HostEnvironment(host.name, python, found.python, state, differing, build, found.packages)


def environments_of(client: AgentClient, *, remove: bool = False) -> list[dict[str, Any]]:
    """The environments that `install` made on a host, as its agent tells them. Raises HostError.

    remove: each goes that no process uses.
    """
    found: list[dict[str, Any]] = client.call(
        "environment_remove", remove=remove, timeout_s=_SILENCE_S
    )
    return found
